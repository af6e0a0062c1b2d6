package sandbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// testLog makes a log of batches from a text such as "0-4 5-5:7 6-6:7c": first
// and last offset, the producer of a transaction, and c for a control batch.
func testLog(t *testing.T, text string) []byte {
	t.Helper()
	var raw []byte
	for _, f := range strings.Fields(text) {
		var s span
		var h fakeBatchHead
		head, producer, _ := strings.Cut(f, ":")
		if _, err := fmt.Sscanf(head, "%d-%d", &s.first, &s.last); err != nil {
			t.Fatal(err)
		}
		if producer != "" {
			producer, h.control = strings.CutSuffix(producer, "c")
			if _, err := fmt.Sscan(producer, &h.producer); err != nil {
				t.Fatal(err)
			}
		}
		h.records = int(s.last - s.first + 1)
		raw = append(raw, encodeFakeBatch(s, h)...)
	}
	return raw
}

func TestLogWindowHides(t *testing.T) {
	for _, row := range []struct {
		name, log string
		committed bool
		aborted   []abortedTxn
		hidden    []int64 // first offsets
	}{
		{"nothing under read_uncommitted", "0-4:7 5-5:7c", false, []abortedTxn{{7, 0}}, nil},
		{"control batches of committed transactions", "0-4:7 5-5:7c 6-9", true, nil, []int64{5}},
		{"an aborted transaction and its marker", "0-4:7 5-5:7c 6-9", true, []abortedTxn{{7, 0}}, []int64{0, 5}},
		{"one producer's of two", "0-1:7 2-3:8 4-5:7 6-6:7c 7-7:8c", true, []abortedTxn{{7, 0}}, []int64{0, 4, 6, 7}},
		{"what came before the transaction", "0-1:7 2-2:7c 3-4:7 5-5:7c", true, []abortedTxn{{7, 3}}, []int64{2, 3, 5}},
		{"what came after it", "0-1:7 2-2:7c 3-4:7 5-5:7c", true, []abortedTxn{{7, 0}}, []int64{0, 2, 5}},
		{"two in a row", "0-1:7 2-2:7c 3-4:7 5-5:7c", true, []abortedTxn{{7, 3}, {7, 0}}, []int64{0, 2, 3, 5}},
		{"one that began before the window", "5-6:7 7-7:7c 8-9:7", true, []abortedTxn{{7, 2}}, []int64{5, 7}},
		{"no plain batch of the same producer", "0-1:7 2-3 4-4:7c", true, []abortedTxn{{7, 0}}, []int64{0, 4}},
	} {
		t.Run(row.name, func(t *testing.T) {
			w, err := newLogWindow(0, testLog(t, row.log), row.committed, row.aborted)
			if err != nil {
				t.Fatal(err)
			}
			var got []int64
			for _, b := range w.batches {
				if b.hidden {
					got = append(got, b.first)
				}
			}
			if !slices.Equal(got, row.hidden) {
				t.Errorf("%q with aborted %v hides %v, want %v", row.log, row.aborted, got, row.hidden)
			}
		})
	}
}

func TestLogWindowStopsAtACutBatch(t *testing.T) {
	raw := testLog(t, "0-4 5-9")
	for _, cut := range []int{1, 30, 80} {
		w, err := newLogWindow(0, raw[:len(raw)-cut], false, nil)
		if err != nil || len(w.batches) != 1 {
			t.Errorf("cut by %d: %d batches, %v, want 1", cut, len(w.batches), err)
		}
	}
	for _, size := range []byte{0, 0xff} {
		bad := slices.Clone(raw)
		for i := range 4 {
			bad[batchLengthAt+i] = size
		}
		if _, err := newLogWindow(0, bad, false, nil); err == nil {
			t.Errorf("a batch length of 4 times %#x is accepted", size)
		}
	}
}

func TestLogWindowAt(t *testing.T) {
	w, err := newLogWindow(0, testLog(t, "0-4 5-9 12-14 15-19"), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	size := w.batches[0].size
	for _, row := range []struct {
		offset int64
		bytes  int
		want   []int64
	}{
		{0, 1 << 20, []int64{0, 5, 12, 15}},
		{4, 1 << 20, []int64{0, 5, 12, 15}},
		{5, 1 << 20, []int64{5, 12, 15}},
		{10, 1 << 20, []int64{12, 15}},
		{19, 1 << 20, []int64{15}},
		{0, 1, []int64{0}},
		{0, 2 * size, []int64{0, 5}},
		{5, 2*size - 1, []int64{5, 12}},
	} {
		var got []int64
		for _, b := range w.at(row.offset, row.bytes) {
			got = append(got, b.first)
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("at(%d, %d) = batches %v, want %v", row.offset, row.bytes, got, row.want)
		}
	}
	for offset, want := range map[int64]bool{-1: false, 0: true, 10: true, 19: true, 20: false} {
		if got := w.covers(offset); got != want {
			t.Errorf("covers(%d) = %v, want %v", offset, got, want)
		}
	}
}

func TestLogWindowBytes(t *testing.T) {
	w, err := newLogWindow(0, testLog(t, "0-4 5-9 10-14 15-19"), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name   string
		ranges []acquiredRange
		want   []int // indexes of batches
	}{
		{"one batch", []acquiredRange{delivered(5, 9, 1)}, []int{1}},
		{"a part of one", []acquiredRange{delivered(6, 7, 1)}, []int{1}},
		{"over a boundary", []acquiredRange{delivered(4, 5, 1)}, []int{0, 1}},
		{"two parts of one batch", []acquiredRange{delivered(5, 5, 1), delivered(8, 9, 2)}, []int{1}},
		{"with a batch between", []acquiredRange{delivered(0, 0, 1), delivered(19, 19, 1)}, []int{0, 3}},
		{"with two gaps", []acquiredRange{delivered(0, 0, 1), delivered(10, 10, 1)}, []int{0, 2}},
		{"all", []acquiredRange{delivered(0, 19, 1)}, []int{0, 1, 2, 3}},
		{"none", nil, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			before := slices.Clone(w.records)
			var want []byte
			for _, i := range row.want {
				b := w.batches[i]
				want = append(want, w.records[b.pos:b.pos+b.size]...)
			}
			if got := w.bytes(w.batches, row.ranges); !slices.Equal(got, want) {
				t.Errorf("%d bytes, want %d", len(got), len(want))
			}
			if !slices.Equal(before, w.records) {
				t.Error("the window was changed")
			}
		})
	}
}

func TestSplitRanges(t *testing.T) {
	w, err := newLogWindow(0, testLog(t, "0-4 5-9 10-14 15-19"), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		in   []acquiredRange
		size int
		want []acquiredRange
	}{
		{[]acquiredRange{delivered(0, 19, 1)}, 0, []acquiredRange{delivered(0, 19, 1)}},
		{[]acquiredRange{delivered(0, 19, 1)}, 5, []acquiredRange{delivered(0, 4, 1), delivered(5, 9, 1), delivered(10, 14, 1), delivered(15, 19, 1)}},
		{[]acquiredRange{delivered(0, 19, 1)}, 6, []acquiredRange{delivered(0, 9, 1), delivered(10, 19, 1)}},
		{[]acquiredRange{delivered(0, 19, 1)}, 100, []acquiredRange{delivered(0, 19, 1)}},
		{[]acquiredRange{delivered(3, 12, 2)}, 1, []acquiredRange{delivered(3, 4, 2), delivered(5, 9, 2), delivered(10, 12, 2)}},
		{[]acquiredRange{delivered(0, 3, 1), delivered(4, 8, 2)}, 2, []acquiredRange{delivered(0, 3, 1), delivered(4, 8, 2)}},
	} {
		if got := splitRanges(row.in, w.batches, row.size); !slices.Equal(got, row.want) {
			t.Errorf("splitRanges(%v, %d) = %v, want %v", row.in, row.size, got, row.want)
		}
	}
}
