package kafkatest

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
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

// Need skips the test if Kafka is not [Available]. In CI (the environment
// variable CI is set) it fails instead: there a test that did not run is no test.
func Need(tb testing.TB) {
	tb.Helper()
	err := Available()
	switch {
	case err == nil:
	case os.Getenv("CI") != "":
		tb.Fatalf("%v; CI does not skip it", err)
	default:
		tb.Skip(err)
	}
}
