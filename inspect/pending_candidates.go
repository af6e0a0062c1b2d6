package inspect

import (
	"fmt"
	"time"

	"github.com/kshare/kshare/wire"
)

// unmovedFor is how long the start offset of a share-partition has to stand still
// before that is taken for a mark of TX_PENDING: Kafka's default for
// group.share.record.lock.duration.ms, after which an acquired record has moved.
const unmovedFor = 30 * time.Second

// candidates are the share-partitions whose state is in one partition of
// __share_group_state and which are not done. All of a cluster can be among them,
// so what is kept is bounded.
type candidates struct {
	count, groups int
	passes        bool             // the filter lets one of them through
	donePasses    bool             // or one that is done, where that counts
	named         []CandidateShare // the first MaxCandidates
	first         candidate
	unmoved       int       // those that have not moved
	still         candidate // the first of these
}

type candidate struct {
	groupID string
	part    SharePartition
}

// candidatesOf returns the candidates of a state partition. All are indexed at
// the first call, in one pass over the groups.
func (j *join) candidatesOf(statePartition int32) *candidates {
	if j.candidates == nil {
		j.candidates = make(map[int32]*candidates)
		for i := range j.ev.Groups {
			j.indexGroup(&j.ev.Groups[i])
		}
	}
	c := j.candidates[statePartition]
	if c == nil {
		c = &candidates{}
		j.candidates[statePartition] = c
	}
	return c
}

func (j *join) indexGroup(g *Group) {
	counted := make(map[int32]bool)
	for i := range g.Partitions {
		p := &g.Partitions[i]
		if p.Lag == 0 && !j.f.Done {
			continue
		}
		n := wire.ShareStatePartition(g.GroupID, p.TopicID, p.Partition, j.ev.StatePartitions)
		c := j.candidates[n]
		if c == nil {
			c = &candidates{}
			j.candidates[n] = c
		}
		passes := passes(j.f.Groups, &g.GroupID) && passes(j.f.Topics, &p.Topic)
		if p.Lag == 0 {
			c.donePasses = c.donePasses || passes
			continue
		}
		if c.count == 0 {
			c.first = candidate{g.GroupID, *p}
		}
		if !counted[n] {
			counted[n] = true
			c.groups++
		}
		c.count++
		c.passes = c.passes || passes
		if len(c.named) < MaxCandidates {
			c.named = append(c.named, CandidateShare{GroupID: g.GroupID, Topic: p.Topic, Partition: p.Partition, Lag: told(p.Lag)})
		}
		if !p.UnmovedSince.IsZero() && j.ev.Time.Sub(p.UnmovedSince) >= unmovedFor {
			if c.unmoved == 0 {
				c.still = candidate{g.GroupID, *p}
			}
			c.unmoved++
		}
	}
}

// likely returns the candidate that is likely meant, and why; nil when none is
// more likely than another.
func (c *candidates) likely(now time.Time, hidden bool) (*candidate, string) {
	switch {
	case c.unmoved == 1:
		return &c.still, fmt.Sprintf("of %s this one alone has not moved, for %s",
			plural(c.count, "candidate share-partition", "candidate share-partitions"), now.Sub(c.still.part.UnmovedSince).Round(time.Second))
	case c.count == 1 && !hidden:
		return &c.first, "of the share-partitions that are not done this one alone has its state there"
	}
	return nil, ""
}
