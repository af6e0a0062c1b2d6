//go:build unix

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// console is a block of README.md that shows kshare and what it prints.
type console struct{ command, output string }

// readmeConsoles returns the blocks whose command is a kshare and that show
// output.
func readmeConsoles(t *testing.T) []console {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var out []console
	for _, m := range regexp.MustCompile("(?s)```console\n\\$ (.*?)\n(.*?)```").FindAllStringSubmatch(string(readme), -1) {
		command := strings.TrimPrefix(m[1], "go run ./cmd/")
		if strings.HasPrefix(command, "kshare ") && m[2] != "" {
			out = append(out, console{command, m[2]})
		}
	}
	return out
}

// seconds is the last column of a result of ctp, which no two runs share, and
// the blanks around it.
var seconds = regexp.MustCompile(`(?m)( +)[0-9]+(\.[0-9]+)?$`)

// committed is how many transactions a run needed, which depends on timing too.
var committed = regexp.MustCompile(`(?m)^(10000 +9980 +9980 +20 +0 +)[0-9]+ +`)

// What README.md shows is what kshare prints.
func TestReadme(t *testing.T) {
	t.Parallel()
	consoles := readmeConsoles(t)
	if len(consoles) < 2 {
		t.Fatalf("README.md shows the output of %d commands, want at least 2", len(consoles))
	}
	for _, c := range consoles {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bash", "-c", c.command)
		cmd.Dir = "../.."
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		_ = cmd.Run() // the code is part of what scripts test
		normal := func(s string) string {
			return committed.ReplaceAllString(seconds.ReplaceAllString(s, " SECONDS"), "${1}N ")
		}
		if got, want := normal(out.String()), normal(c.output); got != want {
			t.Errorf("$ %s\n%s\nREADME.md shows:\n%s", c.command, got, want)
		}
	}
}
