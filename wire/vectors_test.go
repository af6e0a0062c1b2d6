package wire

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// vector returns the bytes that a file of testdata/vectors spells in hex; a "#"
// starts a comment.
func vector(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "vectors", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	var digits strings.Builder
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		digits.WriteString(strings.Join(strings.Fields(line), ""))
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatalf("vector %s: %v", name, err)
	}
	return b
}

// testTopicID is the topic ID of all vectors.
var testTopicID = [16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}

func ptr[T any](v T) *T { return &v }
