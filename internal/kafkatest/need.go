package kafkatest

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/kshare/kshare/internal/need"
)

// Available returns nil if Kafka can be run here: if there are a java with its
// compiler and an mvn in PATH. The error names what is missing. A java that is
// older than 17, or an mvn that cannot download, is a failure of [Start] and not
// looked at here.
func Available() error {
	for _, name := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("real Kafka needs a JDK and Maven: %w", err)
		}
	}
	return nil
}

// Need skips the test if Kafka is not [Available]; in CI it fails instead, see
// package need.
func Need(tb testing.TB) {
	tb.Helper()
	need.None(tb, Available())
}
