package kafkatest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// RunJava compiles and runs a Java program of one file, with the classes of a
// release of Kafka, and returns what it writes to stdout.
func RunJava(tb testing.TB, version, source string, stdin []byte, args ...string) []byte {
	tb.Helper()
	Need(tb)
	r, err := resolve(tb.Context(), version)
	if err != nil {
		tb.Fatal(err)
	}
	file := filepath.Join(tb.TempDir(), "Main.java")
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		tb.Fatal(err)
	}
	jvm := []string{"-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-cp", r.classPath, file}
	cmd := exec.CommandContext(tb.Context(), "java", append(jvm, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		tb.Fatalf("java: %v\n%s", err, stderr.Bytes())
	}
	return stdout.Bytes()
}

// Keytool runs the JDK's keytool, which makes key stores, in a directory.
func Keytool(tb testing.TB, dir string, args ...string) {
	tb.Helper()
	Need(tb)
	cmd := exec.CommandContext(tb.Context(), "keytool", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("keytool %v: %v\n%s", args, err, out)
	}
}
