package main

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
	"unicode/utf8"
)

// The committed file is what the generator writes.
func TestOrdersFileIsGenerated(t *testing.T) {
	want, err := os.ReadFile("../orders.ndjson")
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := writeOrders(&got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Fatalf("examples/orders.ndjson (%d bytes) is not what the generator writes (%d bytes): go run ./examples/gen > examples/orders.ndjson", len(want), got.Len())
	}
}

// The file is as varied as its description says.
func TestOrdersAreVaried(t *testing.T) {
	var file bytes.Buffer
	if err := writeOrders(&file); err != nil {
		t.Fatal(err)
	}
	var malformed, big, notUTF8, nulls, wide int
	lines := bytes.Split(bytes.TrimSuffix(file.Bytes(), []byte("\n")), []byte("\n"))
	for _, l := range lines {
		if !json.Valid(l) {
			malformed++
		}
		if !utf8.Valid(l) {
			notUTF8++
		}
		if len(l) > 20<<10 {
			big++
		}
		if bytes.Contains(l, []byte("null")) {
			nulls++
		}
		if bytes.ContainsFunc(l, func(r rune) bool { return r > 0xffff }) {
			wide++
		}
	}
	for _, c := range []struct {
		what     string
		n        int
		min, max int
	}{
		{"lines", len(lines), 10_000, 10_000},
		{"lines that are not JSON", malformed, 20, 20},
		{"lines that are not UTF-8", notUTF8, 2, 2},
		{"lines above 20 KiB", big, 5, 20},
		{"lines with null", nulls, 1000, 10_000},
		{"lines with characters above U+FFFF", wide, 500, 10_000},
	} {
		if c.n < c.min || c.n > c.max {
			t.Errorf("%s: got %d, want %d to %d", c.what, c.n, c.min, c.max)
		}
	}
}
