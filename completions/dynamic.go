package completions

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/inspect"
)

// Patience is how long a cluster may take to tell its names, from the first
// lookup of a host name to the last answer. With the start of the program it is
// less than a second.
const Patience = 900 * time.Millisecond

// Query asks a cluster for choices. What it is not told before ctx ends, or may
// not know, is not among them.
type Query func(ctx context.Context, cl *cluster.Client) []Choice

// Ask connects and asks, and returns no choices if that takes longer than
// [Patience], or anything fails. It waits for nothing beyond that, not even for a
// connect that does not heed its context, which then goes on in the background.
func Ask(ctx context.Context, connect func(context.Context) (*cluster.Client, error), q Query) []Choice {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	answer := make(chan []Choice, 1)
	go func() {
		cl, err := connect(ctx)
		if err != nil {
			answer <- nil // whoever types is not told why
			return
		}
		defer cl.Close()
		answer <- q(ctx, cl)
	}()
	select {
	case choices := <-answer:
		return choices
	case <-ctx.Done():
		return nil
	}
}

// brokers asks brokers for what they are. Those that do not answer are left out
// by whoever is told of them.
func brokers(ctx context.Context, cl *cluster.Client) []cluster.BrokerVersions {
	d, err := cl.Describe(ctx)
	if err != nil {
		return nil
	}
	return d.Brokers
}

// Groups asks for share groups, with the state of each.
func Groups(ctx context.Context, cl *cluster.Client) []Choice {
	groups, _, err := inspect.ListShareGroups(ctx, cl, brokers(ctx, cl), inspect.GroupQuery{})
	if err != nil {
		return nil
	}
	out := make([]Choice, 0, len(groups))
	for _, g := range groups { // by ID
		out = append(out, Choice{Word: g.GroupID, About: g.State})
	}
	return out
}

// TransactionalIDs asks for transactional IDs, with the state of their
// transactions: those that are open, or all that the coordinators remember.
func TransactionalIDs(open bool) Query {
	var q inspect.TransactionQuery
	if open {
		q.States = inspect.OpenStates()
	}
	return func(ctx context.Context, cl *cluster.Client) []Choice {
		txns, _, err := inspect.ListTransactions(ctx, cl, brokers(ctx, cl), q)
		if err != nil {
			return nil
		}
		out := make([]Choice, 0, len(txns))
		for _, t := range txns { // by ID
			out = append(out, Choice{Word: t.TransactionalID, About: t.State})
		}
		return out
	}
}

// Topics asks for topics, with the number of partitions of each: internal ones,
// or all others.
func Topics(internal bool) Query {
	return func(ctx context.Context, cl *cluster.Client) []Choice {
		topics, err := cl.AllTopics(ctx)
		if err != nil {
			return nil
		}
		var out []Choice
		for _, t := range topics {
			if t.IsInternal == internal {
				out = append(out, Choice{Word: t.Name, About: count(len(t.Partitions), "partition")})
			}
		}
		Sort(out)
		return out
	}
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// Partitions asks for the partitions of a topic, with the leader of each.
func Partitions(topic string) Query {
	return func(ctx context.Context, cl *cluster.Client) []Choice {
		// Not by name: a broker would be asked to create what is not there.
		topics, err := cl.AllTopics(ctx)
		i := slices.IndexFunc(topics, func(t cluster.Topic) bool { return t.Name == topic })
		if err != nil || i < 0 {
			return nil
		}
		out := make([]Choice, 0, len(topics[i].Partitions))
		for _, p := range topics[i].Partitions {
			c := Choice{Word: strconv.Itoa(int(p.Partition)), About: "no leader"}
			if p.Leader >= 0 {
				c.About = fmt.Sprintf("leader %d", p.Leader)
			}
			out = append(out, c)
		}
		return out
	}
}

// Step is which way a level may go.
type Step int8

// The steps.
const (
	AnyLevel Step = iota
	Up            // to a level above the finalized one
	Down          // to one below
)

// levelsOf is a feature with its levels.
type levelsOf struct {
	name   string
	about  string
	levels []Choice // ascending
}

// Features asks for the features that the brokers support, and returns what word
// can become: a name with = behind it, and then one of its levels. It is empty
// where a cluster has no such level, and nil where it could not be asked.
func Features(word string, step Step) Query {
	return func(ctx context.Context, cl *cluster.Client) []Choice {
		r, err := feature.Describe(ctx, cl, feature.DescribeOptions{Dialect: cl.Dialect()})
		if err != nil {
			return nil
		}
		var all []levelsOf
		for _, f := range r.Features { // by name
			if l := supported(f, step); len(l.levels) > 0 {
				all = append(all, l)
			}
		}
		return nameLevel(all, word)
	}
}

// supported returns the levels to which a feature may go.
func supported(f feature.Feature, step Step) levelsOf {
	l := levelsOf{name: f.Name}
	if f.Min == nil || f.Max == nil {
		return l
	}
	l.about = fmt.Sprintf("supported %d to %d", *f.Min, *f.Max)
	finalized := int16(-1) // not known
	if f.Finalized != nil {
		finalized = *f.Finalized
		l.about += fmt.Sprintf(", now %d", finalized)
	}
	for level := *f.Min; level <= *f.Max; level++ {
		if finalized >= 0 && (step == Up && level <= finalized || step == Down && level >= finalized) {
			continue
		}
		c := Choice{Word: strconv.Itoa(int(level)), About: feature.LevelName(f.Name, level)}
		for _, meant := range f.Levels {
			if meant.Level == level {
				c.About = meant.Meaning
			}
		}
		if level == finalized {
			c.About = strings.TrimPrefix(c.About+", now", ", ")
		}
		l.levels = append(l.levels, c)
	}
	return l
}

// ReleasedFeatures returns the features of all releases of Apache Kafka, for
// where there is no cluster to ask; see [Features].
func ReleasedFeatures(word string) []Choice {
	var all []levelsOf
	for _, r := range feature.Releases() { // the newest last
		for _, f := range r.Levels {
			i := slices.IndexFunc(all, func(l levelsOf) bool { return l.name == f.Feature })
			if i < 0 {
				i = len(all)
				all = append(all, levelsOf{name: f.Feature})
			}
			all[i].about = fmt.Sprintf("%d to %d in Kafka %s", f.Min, f.Max, r.Name)
			all[i].levels = nil
			for level := f.Min; level <= f.Max; level++ {
				about := cmp.Or(feature.LevelName(f.Feature, level), feature.ReleasedMeaning(f.Feature, level))
				all[i].levels = append(all[i].levels, Choice{Word: strconv.Itoa(int(level)), About: about})
			}
		}
	}
	slices.SortFunc(all, func(a, b levelsOf) int { return strings.Compare(a.name, b.name) })
	return nameLevel(all, word)
}

// nameLevel returns what word can become: NAME=, and then NAME=LEVEL.
func nameLevel(all []levelsOf, word string) []Choice {
	name, _, chosen := strings.Cut(word, "=")
	out := []Choice{}
	for _, f := range all {
		switch {
		case !chosen:
			out = append(out, Choice{Word: f.name + "=", About: f.about, Open: true})
		case f.name == name:
			for _, l := range f.levels {
				out = append(out, Choice{Word: name + "=" + l.Word, About: l.About})
			}
		}
	}
	return out
}
