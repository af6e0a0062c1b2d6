//go:build unix

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// What docs/connecting.md shows is what kshare prints, one command after the
// other in one home.
func TestConnectingDocument(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/connecting.md")
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	for name, text := range map[string]string{
		"client.properties": "bootstrap.servers=broker1:9093\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n" +
			"sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username=\"alice\" password=\"secret\";\nacks=all\n",
		"password": "secret\n",
	} {
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Columns are as wide as the directory is long, and a build has its version.
	blanks := regexp.MustCompile(`  +`)
	version := regexp.MustCompile(`kshare-(devel|v[^ ]+)`)
	normal := func(s string) string {
		s = strings.ReplaceAll(s, home, "/home/alice")
		return blanks.ReplaceAllString(version.ReplaceAllString(s, "kshare-VERSION"), "  ")
	}
	commands := 0
	for _, m := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(string(doc), -1) {
		for block := range strings.SplitSeq(strings.TrimPrefix(m[1], "$ "), "\n$ ") {
			command, want, _ := strings.Cut(block, "\n")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "bash", "-c", command)
			cmd.Dir = home
			cmd.Env = append(cmd.Environ(), "HOME="+home, "KSHARE_CONFIG="+filepath.Join(home, "config.yaml"))
			var stdout, stderr strings.Builder
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			_ = cmd.Run() // the code is part of what scripts test
			got := stdout.String() + stderr.String()
			if normal(strings.TrimRight(got, "\n")) != normal(strings.TrimRight(want, "\n")) {
				t.Errorf("$ %s\n%s\ndocs/connecting.md shows:\n%s", command, got, want)
			}
			commands++
		}
	}
	if commands < 7 {
		t.Errorf("docs/connecting.md shows %d commands, want at least 7", commands)
	}
}
