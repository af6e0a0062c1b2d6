package output

import (
	"io"
	"strconv"
	"testing"
	"time"
)

// BenchmarkWrite renders ten thousand share-partitions.
func BenchmarkWrite(b *testing.B) {
	type row struct {
		GroupID   string        `json:"group_id"`
		Topic     string        `json:"topic"`
		Partition int32         `json:"partition"`
		Offset    int64         `json:"start_offset"`
		Age       time.Duration `json:"age"`
	}
	const rows = 10_000
	items := make([]row, rows)
	t := NewTable("GROUP", "TOPIC", "PARTITION", "START-OFFSET", "AGE", "VERDICT")
	for i := range items {
		items[i] = row{"group-" + strconv.Itoa(i/100), "orders", int32(i % 100), int64(i) << 20, time.Duration(i) * time.Second}
		t.Row(Key(items[i].GroupID), items[i].Topic, items[i].Partition, items[i].Offset, items[i].Age, Good("exact"))
	}
	v := View{Kind: "bench", Version: 1, Items: items, Table: t}
	for _, o := range []Options{{Format: FormatTable}, {Format: FormatTable, Color: true, Width: 60}, {Format: FormatJSON}, {Format: FormatYAML}, {Format: FormatCSV}} {
		name := string(o.Format)
		if o.Color {
			name += "_terminal"
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := Write(io.Discard, v, o); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
