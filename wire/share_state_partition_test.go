package wire

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestShareStatePartition(t *testing.T) {
	for _, tt := range []struct {
		name      string
		group     string
		partition int32
		hash      int32 // as String.hashCode of a JVM has it
		of50, of3 int32
	}{
		{"short", "g1", 0, -2133911404, 4, 1},
		{"next partition", "g1", 1, -2133911403, 3, 0},
		{"long", "orders-workers", 7, -841288488, 38, 0},
		{"not ASCII", "gr\u00fc\u00dfe", 0, 2009326919, 19, 2},
		{"a surrogate pair", "\U0001F600-workers", 0, 1927221779, 29, 2},
		{"the hash without absolute value", "min-+A4?F=1", 0, math.MinInt32, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if h := javaHash(0, ShareCoordinatorKey(tt.group, testTopicID, tt.partition)); h != tt.hash {
				t.Errorf("hash = %d, want %d", h, tt.hash)
			}
			if n := ShareStatePartition(tt.group, testTopicID, tt.partition, 50); n != tt.of50 {
				t.Errorf("partition = %d of 50, want %d", n, tt.of50)
			}
			if n := ShareStatePartition(tt.group, testTopicID, tt.partition, 3); n != tt.of3 {
				t.Errorf("partition = %d of 3, want %d", n, tt.of3)
			}
		})
	}
	for _, n := range []int32{0, -1} {
		if got := ShareStatePartition("g", testTopicID, 0, n); got != -1 {
			t.Errorf("partition = %d of %d, want -1", got, n)
		}
	}
}

func TestShareCoordinatorKey(t *testing.T) {
	url := [16]byte{0xfb, 0xff, 0xfe} // "-" and "_" in the alphabet for URLs
	for _, tt := range []struct {
		group     string
		topicID   [16]byte
		partition int32
		want      string
	}{
		{"g1", testTopicID, 3, "g1:AAECAwQFBgcICQoLDA0ODw:3"},
		{"a:b", testTopicID, math.MaxInt32, "a:b:AAECAwQFBgcICQoLDA0ODw:2147483647"},
		{"g", url, 0, "g:-__-AAAAAAAAAAAAAAAAAA:0"},
	} {
		got := ShareCoordinatorKey(tt.group, tt.topicID, tt.partition)
		if got != tt.want {
			t.Errorf("ShareCoordinatorKey(%q, %x, %d) = %q, want %q", tt.group, tt.topicID, tt.partition, got, tt.want)
		}
		group, id, partition, err := ParseShareCoordinatorKey(got)
		if err != nil || group != tt.group || id != tt.topicID || partition != tt.partition {
			t.Errorf("ParseShareCoordinatorKey(%q) = %q, %x, %d, %v", got, group, id, partition, err)
		}
	}
	if got, want := ShareCoordinatorKey("g", url, math.MinInt32), "g:-__-AAAAAAAAAAAAAAAAAA:-2147483648"; got != want {
		t.Errorf("smallest partition: %q, want %q", got, want)
	}

	for _, key := range []string{
		"", "g", "g:AAECAwQFBgcICQoLDA0ODw", ":AAECAwQFBgcICQoLDA0ODw:0",
		"g:AAECAwQFBgcICQoLDA0ODw:", "g:AAECAwQFBgcICQoLDA0ODw:-1", "g:AAECAwQFBgcICQoLDA0ODw:+1",
		"g:AAECAwQFBgcICQoLDA0ODw:01", "g:AAECAwQFBgcICQoLDA0ODw:2147483648", "g:AAECAwQFBgcICQoLDA0ODw:x",
		"g:AAECAwQFBgcICQoLDA0OD:0", "g:AAECAwQFBgcICQoLDA0ODw==:0", "g:AAECAwQFBgcICQoLDA0ODx:0",
		"g:AAECAwQFBgcICQoLDA0ODw\n:0", "g:+//+AAAAAAAAAAAAAAAAAA:0", "g::0",
	} {
		if group, id, partition, err := ParseShareCoordinatorKey(key); err == nil || !strings.HasPrefix(err.Error(), "share coordinator key ") {
			t.Errorf("ParseShareCoordinatorKey(%q) = %q, %x, %d, %v; want an error that names the key", key, group, id, partition, err)
		}
	}
}

func TestShareStatePartitionDoesNotAllocate(t *testing.T) {
	if got := testing.AllocsPerRun(100, func() { ShareStatePartition("orders-workers", testTopicID, 7, 50) }); got != 0 {
		t.Errorf("%v allocations, want none", got)
	}
}

// All partitions are used, each about as often as the others.
func TestShareStatePartitionSpreads(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	var hits [50]int
	for range 50 * 200 {
		var id [16]byte
		for i := range id {
			id[i] = byte(rng.Uint32())
		}
		hits[ShareStatePartition("g", id, rng.Int32N(100), 50)]++
	}
	for n, h := range hits {
		if h < 100 || h > 300 {
			t.Errorf("partition %d holds %d of %d keys", n, h, 50*200)
		}
	}
}

// FuzzShareCoordinatorKey: a key that can be parsed is the one spelling of what
// it says.
func FuzzShareCoordinatorKey(f *testing.F) {
	f.Add("g1:AAECAwQFBgcICQoLDA0ODw:3")
	f.Add("a:b:AAECAwQFBgcICQoLDA0ODw:2147483647")
	f.Add("g:AAECAwQFBgcICQoLDA0ODw:-1")
	f.Add("\U0001F600:AAECAwQFBgcICQoLDA0ODw:0")
	f.Fuzz(func(t *testing.T, key string) {
		group, id, partition, err := ParseShareCoordinatorKey(key)
		if err != nil {
			return
		}
		if got := ShareCoordinatorKey(group, id, partition); got != key {
			t.Fatalf("key %q became %q", key, got)
		}
		if n := ShareStatePartition(group, id, partition, 50); n < 0 || n >= 50 {
			t.Fatalf("partition of %q is %d of 50", key, n)
		}
	})
}
