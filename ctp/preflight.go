package ctp

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
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
	steps := append(preflightSteps(cl, &opts, &dialect, true),
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

// preflightSteps are the checks before a run; guess has them fail also for what is
// only likely to be wrong.
func preflightSteps(cl *cluster.Client, opts *Options, dialect *wire.Dialect, guess bool) []preflightStep {
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
		{"share state topic", func(ctx context.Context) (string, error) { return checkStateTopic(ctx, cl, guess) }},
	}
}

const stateTopic = "__share_group_state"

const (
	stateReplicasConfig = "share.coordinator.state.topic.replication.factor"
	// stateReplicas is Kafka's default of it.
	stateReplicas = 3
)

// checkStateTopic finds out whether share groups can work: the brokers create
// their topic with the first group, unless there are too few of them for it. Then a
// member would wait for its assignment for ever. guess takes Kafka's default for a
// config that cannot be read.
func checkStateTopic(ctx context.Context, cl *cluster.Client, guess bool) (string, error) {
	_, err := cl.Topics(ctx, stateTopic)
	switch {
	case err == nil:
		return stateTopic + " exists", nil
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Sprintf("whether %s exists is not told to this principal", stateTopic), nil
	case !errors.Is(err, kerr.UnknownTopicOrPartition):
		return "", err
	}
	d, err := cl.Describe(ctx)
	if err != nil {
		return "", err
	}
	replicas, known := readStateReplicas(ctx, cl)
	if len(d.Brokers) >= replicas || !known && !guess {
		return stateTopic + " does not exist yet; the first share group creates it", nil
	}
	u := &cluster.UnsupportedError{
		What:   "a share group",
		Reason: fmt.Sprintf("topic %s does not exist, and with %d replicas (%s) %d brokers cannot create it", stateTopic, replicas, stateReplicasConfig, len(d.Brokers)),
		Advice: "set " + stateReplicasConfig + ", share.coordinator.state.topic.min.isr and offsets.topic.replication.factor on the brokers to what there is",
	}
	if !known {
		u.Reason = fmt.Sprintf("topic %s does not exist, and with its default of %d replicas %d brokers cannot create it", stateTopic, replicas, len(d.Brokers))
		u.Advice += ", or ignore this if they are"
	}
	return "", u
}

// readStateReplicas returns how many replicas the brokers would create the topic
// with: Kafka's default, and false, where that cannot be read.
func readStateReplicas(ctx context.Context, cl *cluster.Client) (replicas int, known bool) {
	if node, err := cl.AnyBroker(ctx); err == nil {
		v, ok, err := cl.ResourceConfig(ctx, kmsg.ConfigResourceTypeBroker, strconv.Itoa(int(node)), stateReplicasConfig)
		if n, nerr := strconv.Atoi(v); err == nil && ok && nerr == nil {
			return n, true
		}
	}
	return stateReplicas, false
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
