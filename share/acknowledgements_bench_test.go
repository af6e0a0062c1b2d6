package share

import (
	"encoding/binary"
	"testing"

	"github.com/kshare/kshare/wire"
)

// alternating returns the types of a million offsets of which every other one is
// rejected.
func alternating() []wire.AcknowledgeType {
	types := make([]wire.AcknowledgeType, 1_000_000)
	for i := range types {
		types[i] = []wire.AcknowledgeType{wire.Accept, wire.Reject}[i%2]
	}
	return types
}

// The measure: a loop over the same slice, written for what it holds. It knows
// that the offsets follow each other, finds out whether one type would do, and
// appends what it finds to the request.
func BenchmarkAlternatingByHand(b *testing.B) {
	in := alternating()
	b.ReportAllocs()
	var size int
	for b.Loop() {
		types := make([]byte, 0, len(in))
		uniform := true
		for _, t := range in {
			uniform = uniform && t == in[0]
			types = append(types, byte(t))
		}
		if uniform {
			types = types[:1]
		}
		dst := make([]byte, 0, len(types)+64)
		dst = append(dst, 2) // one batch
		dst = binary.BigEndian.AppendUint64(dst, 0)
		dst = binary.BigEndian.AppendUint64(dst, uint64(len(in)-1))
		dst = binary.AppendUvarint(dst, uint64(len(types)+1))
		dst = append(dst, types...)
		dst = append(dst, 0)
		size = len(dst)
	}
	b.ReportMetric(float64(size), "wire-bytes")
}

func BenchmarkAlternating(b *testing.B) {
	types := alternating()
	for name, add := range map[string]func(*Acknowledgements){
		"AddTypes": func(a *Acknowledgements) { a.AddTypes(orders0, 0, types) },
		"Add": func(a *Acknowledgements) {
			p := a.Partition(orders0)
			for i, t := range types {
				p.Add(int64(i), t)
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var size int
			for b.Loop() {
				var a Acknowledgements
				add(&a)
				batches, err := a.Batches(orders0)
				if err != nil {
					b.Fatal(err)
				}
				dst := make([]byte, 0, len(types)+64)
				dst = wire.AppendAcknowledgementBatches(dst, batches, wire.AcknowledgeTypesArray)
				size = len(dst)
			}
			b.ReportMetric(float64(size), "wire-bytes")
		})
	}
}
