package kafkatest_test

import (
	"testing"

	"github.com/kshare/kshare/internal/kafkatest"
)

func TestMain(m *testing.M) { kafkatest.Main(m) }

func TestX(t *testing.T) {
	for _, v := range []string{kafkatest.Kafka44, kafkatest.Kafka42, kafkatest.Kafka40} {
		t.Run(v, func(t *testing.T) {
			k := kafkatest.Shared(t, kafkatest.Config{Version: v})
			out, err := k.Tool(t.Context(), kafkatest.FeatureTool, "describe")
			t.Log(out, err)
		})
	}
}
