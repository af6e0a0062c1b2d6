package commands

import (
	"bytes"
	"strings"
	"sync"
)

// withoutSecrets leaves kshare's own settings out of an environment: some of them
// are passwords, and none is the business of a program that it starts.
func withoutSecrets(env []string) []string {
	var out []string
	for _, kv := range env {
		if !strings.HasPrefix(kv, "KSHARE_") {
			out = append(out, kv)
		}
	}
	return out
}

// lineWriter calls line for each line that is written to it. It is safe for
// concurrent use. What has no end yet is kept, up to maxLine.
type lineWriter struct {
	line func(string)

	mu   sync.Mutex
	rest []byte
}

const maxLine = 8 << 10

// Write implements io.Writer; it never fails.
func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(p)
	for {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			break
		}
		w.line(string(bytes.TrimSuffix(append(w.rest, p[:i]...), []byte{'\r'})))
		w.rest, p = w.rest[:0], p[i+1:]
	}
	w.rest = append(w.rest, p...)
	if len(w.rest) > maxLine {
		w.line(string(w.rest))
		w.rest = w.rest[:0]
	}
	return n, nil
}

// Flush ends the last line.
func (w *lineWriter) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.rest) > 0 {
		w.line(string(w.rest))
		w.rest = nil
	}
}
