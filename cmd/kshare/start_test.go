package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// importBytes says how much a library may allocate at import time, in front of
// every command; unlistedBytes is for all others. Before one is added or raised,
// see whether another library does, or a few lines of our own.
func importBytes() map[string]int {
	const kib = 1 << 10
	return map[string]int{
		"github.com/itchyny/gojq":             256 * kib, // the builtins of jq
		"github.com/klauspost/compress/flate": 32 * kib,  // by kgo
		"github.com/olekukonko/errors":        80 * kib,  // by tablewriter
		"github.com/schollz/progressbar/v3":   32 * kib,
		"github.com/subosito/gotenv":          40 * kib, // by viper
		"github.com/twmb/franz-go/pkg/kfake":  80 * kib,
		"go.yaml.in/yaml/v3":                  32 * kib,
	}
}

const unlistedBytes = 10 << 10

// How long a program takes to start depends on the machine; "go run ./bench
// -only start" measures it. What a program does before main, and how much of it
// there is, does not depend on anything, and is held here.
func TestStart(t *testing.T) {
	t.Parallel()
	program := build(t)
	t.Run("packages do nothing at import time", func(t *testing.T) {
		checkInits(t, traceInits(t, program))
	})
	// What looks methods up by name, as text/template does, makes the linker
	// keep every exported method there is: a quarter more of program.
	t.Run("the linker drops unused methods", func(t *testing.T) {
		b, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]bool{
			"github.com/spf13/cobra.(*Command).ExecuteC": true, // else this is no way to look
			"reflect.Value.MethodByName":                 false,
			"text/template.(*Template).Execute":          false,
		} {
			if got := bytes.Contains(b, []byte(name)); got != want {
				t.Errorf("the program has %s: %v, want %v", name, got, want)
			}
		}
	})
}

// build returns the path of kshare, built as releases are.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir+string(filepath.Separator), ".")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	program, err := exec.LookPath(filepath.Join(dir, "kshare"))
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func checkInits(t *testing.T, inits []packageInit) {
	t.Helper()
	allowed := importBytes()
	for _, in := range inits {
		host, _, _ := strings.Cut(in.pkg, "/")
		bound, listed := allowed[in.pkg]
		delete(allowed, in.pkg)
		if !listed {
			bound = unlistedBytes
		}
		switch {
		case strings.HasPrefix(in.pkg, "github.com/kshare/kshare/"):
			if in.allocs > 0 {
				t.Errorf("%s allocates %d bytes at import time: what is a variable there has to be a function", in.pkg, in.bytes)
			}
		case strings.Contains(host, ".") && in.bytes > bound: // not the standard library
			t.Errorf("%s allocates %d bytes at import time, at most %d are allowed", in.pkg, in.bytes, bound)
		}
	}
	for pkg := range allowed {
		t.Errorf("importBytes names %s, which is not in the program or does nothing at import time", pkg)
	}
}

// packageInit is what the initialization of one package cost.
type packageInit struct {
	pkg           string
	bytes, allocs int
}

func traceInits(t *testing.T, program string) []packageInit {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, "version")
	cmd.Env = append(cmd.Environ(), "GODEBUG=inittrace=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("kshare version: %v\n%s", err, stderr.Bytes())
	}
	var inits []packageInit
	for lines := bufio.NewScanner(&stderr); lines.Scan(); {
		var in packageInit
		var at, took float64
		_, err := fmt.Sscanf(lines.Text(), "init %s @%g ms, %g ms clock, %d bytes, %d allocs", &in.pkg, &at, &took, &in.bytes, &in.allocs)
		if err != nil {
			t.Fatalf("line of inittrace %q: %v", lines.Text(), err)
		}
		if in.pkg, err = url.PathUnescape(in.pkg); err != nil { // the linker escapes dots
			t.Fatal(err)
		}
		inits = append(inits, in)
	}
	if len(inits) == 0 {
		t.Fatal("GODEBUG=inittrace=1 says nothing")
	}
	return inits
}
