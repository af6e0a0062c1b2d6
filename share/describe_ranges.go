package share

import (
	"context"

	"github.com/kshare/kshare/cluster"
)

// RangesDescription says what [AcquireRanges] would find, as far as that can be
// told without becoming a member.
type RangesDescription struct {
	// Reports cover every offset that was asked for, by topic, partition and
	// offset. None is [RangeAcquired].
	Reports []RangeReport
	// Bystanders counts the offsets that would be acquired on the way to those that
	// were asked for, and lose one delivery; fewer, where other members hold some.
	// It is -1 when the state of a share-partition cannot be read.
	Bystanders int64
}

// DescribeRanges says what is known of offsets of a share group before anybody
// tries to acquire them: it joins no group and changes nothing. Of the
// configuration it uses the group, the ranges and the clock. It may return
// *cluster.Error, *cluster.AuthError, *cluster.UnsupportedError or
// *cluster.DialError.
func DescribeRanges(ctx context.Context, cl *cluster.Client, cfg AcquireConfig) (*RangesDescription, error) {
	w, err := newWalk(ctx, cl, cfg)
	if err != nil {
		return nil, err
	}
	if err := w.know(ctx); err != nil {
		return nil, err
	}
	d := new(RangesDescription)
	for _, tp := range sortedPartitions(w.asked) {
		k := w.known[tp]
		if len(w.missing(tp)) > 0 {
			k = w.whyMissing(ctx, tp, k)
		}
		k.untried = true
		reports := report(tp, w.asked[tp], nil, k)
		d.Reports = append(d.Reports, reports...)
		var left rangeSet
		for _, r := range reports {
			if r.Status == RangeUntried {
				left = append(left, r.Range)
			}
		}
		if n := bystanders(left, k); n < 0 || d.Bystanders < 0 {
			d.Bystanders = -1
		} else {
			d.Bystanders += n
		}
	}
	return d, nil
}
