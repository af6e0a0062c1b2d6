package commands

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
)

// ackRange is a range of offsets that is to be acknowledged.
type ackRange struct {
	share.AskedRange
	Type wire.AcknowledgeType // Accept or Reject
}

const ackRangeForm = "TOPIC:PARTITION:FIRST-LAST, or TOPIC:PARTITION:OFFSET"

// parseAckRange reads "orders:0:7-9" or "orders:0:7".
func parseAckRange(s string, t wire.AcknowledgeType) (ackRange, error) {
	bad := func() (ackRange, error) { return ackRange{}, fmt.Errorf("want %s", ackRangeForm) }
	parts := strings.Split(s, ":")
	if len(parts) != 3 || !isTopicName(parts[0]) {
		return bad()
	}
	partition, err := strconv.ParseUint(parts[1], 10, 31)
	if err != nil {
		return bad()
	}
	first, last, isRange := strings.Cut(parts[2], "-")
	if !isRange {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 63)
	if err != nil {
		return bad()
	}
	to, err := strconv.ParseUint(last, 10, 63)
	if err != nil {
		return bad()
	}
	if to < from {
		return ackRange{}, fmt.Errorf("the last offset %d is below the first one, %d", to, from)
	}
	r := ackRange{Type: t}
	r.Topic, r.Partition, r.Range = parts[0], int32(partition), share.Range{FirstOffset: int64(from), LastOffset: int64(to)}
	return r, nil
}

// readAckRanges reads lines "accept orders:0:7-9" and "reject orders:0:10". Blank
// ones, what follows #, and a byte order mark at the beginning do not count.
func readAckRanges(name string, in io.Reader) ([]ackRange, error) {
	var out []ackRange
	lines := bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if n == 1 {
			text = strings.TrimPrefix(text, "\ufeff")
		}
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		types := map[string]wire.AcknowledgeType{"accept": wire.Accept, "reject": wire.Reject}
		t, ok := types[words[0]]
		if !ok || len(words) != 2 {
			return nil, usagef("%s, line %d: want accept or reject, and %s", name, n, ackRangeForm)
		}
		r, err := parseAckRange(words[1], t)
		if err != nil {
			return nil, usagef("%s, line %d: %q: %s", name, n, words[1], err)
		}
		out = append(out, r)
	}
	if err := lines.Err(); err != nil {
		return nil, usagef("%s: %s", name, err)
	}
	return out, nil
}

// ackSelection is what is to be acknowledged.
type ackSelection struct {
	GroupID string
	Ranges  []ackRange // sorted, without overlap
}

// ackFlags are the flags that say it.
type ackFlags struct {
	Accept, Reject []string
	FromFile       string
}

// given reports whether any offsets are named.
func (f *ackFlags) given() bool { return len(f.Accept)+len(f.Reject) > 0 || f.FromFile != "" }

// ranges returns what the flags name. yes says that nothing will be asked on
// stdin.
func (f *ackFlags) ranges(stdin io.Reader, yes bool) ([]ackRange, error) {
	var out []ackRange
	for _, of := range []struct {
		flag   string
		values []string
		t      wire.AcknowledgeType
	}{{"--accept", f.Accept, wire.Accept}, {"--reject", f.Reject, wire.Reject}} {
		for _, s := range of.values {
			r, err := parseAckRange(s, of.t)
			if err != nil {
				return nil, usagef("%s %q: %s", of.flag, s, err)
			}
			out = append(out, r)
		}
	}
	switch f.FromFile {
	case "":
	case "-":
		if !yes {
			return nil, hintf(usagef("stdin has the offsets, so nothing can be confirmed there"), "repeat the command with --yes, or give --from-file FILE")
		}
		more, err := readAckRanges("stdin", stdin)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	default:
		in, err := os.Open(f.FromFile)
		if err != nil {
			return nil, usagef("--from-file: %s", err)
		}
		defer func() { _ = in.Close() }() // it was read
		more, err := readAckRanges(f.FromFile, in)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return mergeAckRanges(out)
}

// mergeAckRanges sorts ranges and joins those that overlap or meet. An offset that
// is to be accepted and rejected is a usage error.
func mergeAckRanges(in []ackRange) ([]ackRange, error) {
	slices.SortFunc(in, func(a, b ackRange) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.FirstOffset, b.FirstOffset))
	})
	var out []ackRange
	for _, r := range in {
		if n := len(out) - 1; n >= 0 && out[n].Topic == r.Topic && out[n].Partition == r.Partition {
			switch {
			case r.FirstOffset <= out[n].LastOffset && r.Type != out[n].Type:
				return nil, usagef("%s-%d: offset %d is to be accepted and rejected", r.Topic, r.Partition, r.FirstOffset)
			case r.FirstOffset-1 <= out[n].LastOffset && r.Type == out[n].Type:
				out[n].LastOffset = max(out[n].LastOffset, r.LastOffset)
				continue
			}
		}
		out = append(out, r)
	}
	var all int64
	for _, r := range out {
		n := r.Len()
		if all += n; n < 0 || all < 0 {
			return nil, usagef("%s-%d, offsets %d to %d: these are more offsets than there can be", r.Topic, r.Partition, r.FirstOffset, r.LastOffset)
		}
	}
	return out, nil
}

// asked returns the ranges as share takes them.
func (s *ackSelection) asked() []share.AskedRange {
	out := make([]share.AskedRange, 0, len(s.Ranges))
	for _, r := range s.Ranges {
		out = append(out, r.AskedRange)
	}
	return out
}

// ackItem is a range that was asked for, or a part of one: as much as has the same
// answer.
type ackItem struct {
	Topic       string `json:"topic"`
	Partition   int32  `json:"partition"`
	FirstOffset int64  `json:"first_offset"`
	LastOffset  int64  `json:"last_offset"`
	Count       int64  `json:"count"`
	Acknowledge string `json:"acknowledge"` // accept or reject
	// Status is acquired, terminal, pending, locked, beyond_end, not_offered or,
	// before anybody has tried, not_tried.
	Status          string  `json:"status"`
	DeliveryCount   *int16  `json:"delivery_count"`   // this delivery included; null unless acquired
	TransactionalID *string `json:"transactional_id"` // of the transaction that holds pending offsets
	Reason          string  `json:"reason"`           // of the status, a sentence without a full stop
	// Result is planned, committed, prepared, not_acquired, not_attempted, released,
	// failed or unknown.
	Result string `json:"result"`

	report share.RangeReport
	typ    wire.AcknowledgeType
}

// What became of a range.
const (
	ackPlanned      = "planned"
	ackCommitted    = "committed"
	ackPrepared     = "prepared"
	ackNotAcquired  = "not_acquired"
	ackNotAttempted = "not_attempted" // refused before anything was acquired
	ackReleased     = "released"      // acquired, and given back unacknowledged
	ackFailed       = "failed"
	ackUnknown      = "unknown"
)

// newAckItems joins what was asked for, which knows the type, with the reports,
// which know the status. What has the status wanted gets the result, and all else
// is not acquired.
func newAckItems(asked []ackRange, reports []share.RangeReport, wanted share.RangeStatus, result string) []ackItem {
	out := []ackItem{}
	for _, a := range asked {
		for _, r := range reports {
			first, last := max(a.FirstOffset, r.FirstOffset), min(a.LastOffset, r.LastOffset)
			if a.Topic != r.Topic || a.Partition != r.TopicPartition.Partition || first > last {
				continue
			}
			i := ackItem{
				Topic: a.Topic, Partition: a.Partition, FirstOffset: first, LastOffset: last, Count: last - first + 1,
				Acknowledge: "accept", Status: statusWord(r.Status), TransactionalID: known(r.TransactionalID), Reason: r.Reason,
				Result: ackNotAcquired, report: r, typ: a.Type,
			}
			if a.Type == wire.Reject {
				i.Acknowledge = "reject"
			}
			if r.Status == share.RangeAcquired {
				i.DeliveryCount = new(r.DeliveryCount)
			}
			if r.Status == wanted {
				i.Result = result
			}
			out = append(out, i)
		}
	}
	return out
}

func statusWord(s share.RangeStatus) string {
	if s == share.RangeBeyondEnd {
		return "beyond_end"
	}
	return strings.ReplaceAll(s.String(), " ", "_")
}

// countOf counts the offsets that have a result.
func countOf(items []ackItem, result string) int64 {
	var n int64
	for _, i := range items {
		if i.Result == result {
			n += i.Count
		}
	}
	return n
}

// acknowledgementsOf says the asked type of every offset that is held.
func acknowledgementsOf(items []ackItem) *share.Acknowledgements {
	acks := new(share.Acknowledgements)
	for _, i := range items {
		if i.report.Status == share.RangeAcquired {
			acks.AddRange(i.report.TopicPartition, share.Range{FirstOffset: i.FirstOffset, LastOffset: i.LastOffset}, i.typ)
		}
	}
	return acks
}
