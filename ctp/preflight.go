package ctp

import (
	"context"
	"errors"
	"fmt"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
)

// Check is one thing that was looked at before a run.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"` // a sentence without a full stop: what was found
}

// Preflight checks what [Run] checks before it joins the group, and a little
// more, and changes nothing. It goes on after a check that fails, and returns the
// error of the first one. It fails with *OptionError, without checks, for
// options.
func Preflight(ctx context.Context, cl *cluster.Client, opts Options) ([]Check, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	var dialect wire.Dialect
	steps := append(preflightSteps(cl, &opts, &dialect),
		preflightStep{"share state topic", func(ctx context.Context) (string, error) { return checkStateTopic(ctx, cl) }},
		preflightStep{"isolation level", func(ctx context.Context) (string, error) { return isolation(ctx, cl, &opts) }})
	var first error
	checks := make([]Check, 0, len(steps))
	for _, step := range steps {
		detail, err := step.do(ctx)
		if ctx.Err() != nil {
			return checks, context.Cause(ctx)
		}
		if err != nil {
			detail = err.Error()
			if first == nil {
				first = err
			}
		}
		checks = append(checks, Check{Name: step.name, OK: err == nil, Detail: detail})
	}
	return checks, first
}

type preflightStep struct {
	name string
	do   func(context.Context) (detail string, err error)
}

func preflightSteps(cl *cluster.Client, opts *Options, dialect *wire.Dialect) []preflightStep {
	return []preflightStep{
		{"transactional acknowledgement", func(ctx context.Context) (string, error) {
			if opts.Guarantee != ExactlyOnce {
				return "not needed for " + string(opts.Guarantee), nil
			}
			d, err := cl.RequireTxnShareAcknowledge(ctx)
			if err != nil {
				return "", err
			}
			*dialect = d
			return fmt.Sprintf("the cluster implements it, dialect %s", d.Name), nil
		}},
		{"topics", func(ctx context.Context) (string, error) {
			return "they exist", checkTopics(ctx, cl, opts)
		}},
		{"transaction timeout", func(ctx context.Context) (string, error) {
			return opts.TxnTimeout.String(), checkTxnTimeout(ctx, cl, opts.TxnTimeout)
		}},
	}
}

const stateTopic = "__share_group_state"

// checkStateTopic finds out whether share groups can work: the brokers create
// their topic with the first group, unless there are too few of them for it.
func checkStateTopic(ctx context.Context, cl *cluster.Client) (string, error) {
	_, err := cl.Topics(ctx, stateTopic)
	if err == nil {
		return stateTopic + " exists", nil
	}
	if !errors.Is(err, kerr.UnknownTopicOrPartition) {
		return "", err
	}
	d, err := cl.Describe(ctx)
	if err != nil {
		return "", err
	}
	const needed = 3 // Kafka's default of share.coordinator.state.topic.replication.factor
	if len(d.Brokers) < needed {
		return "", &cluster.UnsupportedError{
			What:   "a share group",
			Reason: fmt.Sprintf("topic %s does not exist, and with its default of %d replicas %d brokers cannot create it", stateTopic, needed, len(d.Brokers)),
			Advice: "set share.coordinator.state.topic.replication.factor, share.coordinator.state.topic.min.isr and offsets.topic.replication.factor on the brokers to what there is, or ignore this if they are",
		}
	}
	return stateTopic + " does not exist yet; the first share group creates it", nil
}

// isolation says what the group reads.
func isolation(ctx context.Context, cl *cluster.Client, opts *Options) (string, error) {
	if opts.IsolationLevel != "" {
		return fmt.Sprintf("%s will be set to %s", isolationConfig, opts.IsolationLevel), nil
	}
	value, ok, err := cl.GroupConfig(ctx, opts.GroupID, isolationConfig)
	switch {
	case opts.RequireReadCommitted:
		return "read_committed", checkIsolation(ctx, cl, opts)
	case err != nil:
		return fmt.Sprintf("%s cannot be read: %v", isolationConfig, err), nil
	case !ok:
		return isolationConfig + " is not told", nil
	}
	return value, nil
}
