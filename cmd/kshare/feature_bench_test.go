//go:build unix

package main

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/internal/kafkatest"
)

// A cold "kshare feature describe", process and all, against Kafka's own tool on
// the same broker: java/kshare is how many times as long the tool takes. It is
// run with the archive of classes that kafkatest keeps, so this flatters it.
func BenchmarkFeatureDescribe(b *testing.B) {
	k := kafkatest.Start(b, kafkatest.Config{})
	path, err := exec.LookPath("kshare")
	if err != nil {
		b.Fatal(err)
	}
	const toolRuns = 5
	started := time.Now()
	for range toolRuns {
		if _, err := k.Tool(b.Context(), kafkatest.FeatureTool, "describe"); err != nil {
			b.Fatal(err)
		}
	}
	tool := time.Since(started) / toolRuns
	for b.Loop() {
		cmd := exec.CommandContext(b.Context(), path, "feature", "describe", "-b", strings.Join(k.Bootstrap(), ","))
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
	}
	b.ReportMetric(float64(tool)*float64(b.N)/float64(b.Elapsed()), "java/kshare")
}
