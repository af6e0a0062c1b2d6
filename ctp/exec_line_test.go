package ctp

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"testing"
)

// Whatever stands where in a string, JSON has it as it was, on one line.
func TestAppendString(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for size := range 27 {
		for c := range rune(0x100) {
			for at := range size + 1 {
				s := bytes.Repeat([]byte("x"), size)
				for i := range s {
					if rnd.IntN(8) == 0 {
						s[i] = byte(rnd.IntN(0x80))
					}
				}
				s = append(append(append([]byte{}, s[:at]...), string(c)...), s[at:]...)
				line := appendString(nil, s)
				var got string
				if err := json.Unmarshal(line, &got); err != nil || got != string(s) {
					t.Fatalf("%q is written as %q and read as %q, %v", s, line, got, err)
				}
				if bytes.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) {
					t.Fatalf("%q is written as %q, with a control character", s, line)
				}
			}
		}
	}
}
