package share

import "github.com/twmb/franz-go/pkg/kgo"

// Split takes records out of a batch: it returns what is left, and for each
// record that alone holds of a batch with that record. Gaps stay with the record
// that they come after, or with what is left. Everything that b has acquired is
// in exactly one of them, and b is not to be used afterwards.
func (b *Batch) Split(alone func(*PartitionBatch, *kgo.Record) bool) (rest *Batch, singles []*Batch) {
	rest = new(Batch)
	for _, p := range b.Partitions {
		for p != nil {
			n := 0
			for n < len(p.Records) && !alone(p, p.Records[n]) {
				n++
			}
			if n == len(p.Records) {
				rest.Partitions = append(rest.Partitions, p)
				break
			}
			if n > 0 {
				var head *PartitionBatch
				head, p = p.take(n)
				rest.Partitions = append(rest.Partitions, head)
			}
			var single *PartitionBatch
			single, p = p.take(1)
			singles = append(singles, &Batch{Partitions: []*PartitionBatch{single}})
		}
	}
	return rest, singles
}
