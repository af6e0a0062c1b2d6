package commands

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/cluster/auth"
	"github.com/kshare/kshare/completions"
	"github.com/kshare/kshare/internal/config"
	"github.com/kshare/kshare/sandbox"
)

// hasConnection reports whether the command connects to a cluster that settings
// name.
func (y *typing) hasConnection() bool { return y.cmd.Flags().Lookup("command-config") != nil }

// hasControl reports whether the command speaks to a sandbox that is running.
func (y *typing) hasControl() bool {
	return !y.hasConnection() && y.cmd.Flags().Lookup("control") != nil && y.cmd.Flags().Lookup("load") == nil
}

// ownSandbox reports whether the command runs on a sandbox of its own.
func (y *typing) ownSandbox() bool {
	return y.flag("sandbox") == "true" || !y.hasConnection() && y.cmd.Flags().Lookup("load") != nil
}

// ask asks the cluster that the line, the environment and the configuration file
// name; nobody if they name none, or if connecting would disturb somebody.
func (y *typing) ask(q completions.Query) []completions.Choice {
	switch {
	case y.ownSandbox():
		return nil
	case y.hasControl():
		return completions.Ask(y.cmd.Context(), y.connectSandbox, q)
	case y.hasConnection():
		return completions.Ask(y.cmd.Context(), y.connect, q)
	}
	return nil
}

// connect connects without a word: it asks for no secret, and runs no command that
// has one, since that may ask in its turn.
func (y *typing) connect(ctx context.Context) (*cluster.Client, error) {
	given := make(map[config.Key]string)
	for _, s := range config.Settings() {
		if text := y.flag(s.Flag); text != "" && s.Kind != config.List {
			given[s.Key] = text
		}
	}
	if servers := y.flagValues("bootstrap-server"); len(servers) > 0 {
		given[config.BootstrapServer] = strings.Join(servers, ",")
	}
	r, err := config.Resolve(config.Input{
		Flags: given, Getenv: y.d.Getenv, Path: y.d.configPath(),
		ClientID: cluster.DefaultClientID(buildVersion()),
	})
	if err != nil {
		return nil, err
	}
	cfg, _, err := y.d.clusterConfigWith(r, func() (auth.Options, error) { return r.UnattendedOptions(ctx) })
	if err != nil {
		return nil, err
	}
	return cluster.Connect(ctx, cfg)
}

// connectSandbox connects to the sandbox behind a control address.
func (y *typing) connectSandbox(ctx context.Context) (*cluster.Client, error) {
	state, err := y.sandboxState(ctx)
	if err != nil {
		return nil, err
	}
	servers := make([]string, 0, len(state.Brokers))
	for _, b := range state.Brokers {
		servers = append(servers, b.Address)
	}
	return cluster.Connect(ctx, cluster.Config{BootstrapServers: servers, Version: buildVersion()})
}

func (y *typing) sandboxState(ctx context.Context) (sandbox.State, error) {
	c := sandboxControl{Control: y.flag("control")}
	if err := c.resolve(y.d); err != nil {
		return sandbox.State{}, err
	}
	return c.client().state(ctx)
}

func (y *typing) groups() []completions.Choice { return y.ask(completions.Groups) }

// topics are those of the cluster. Internal ones are offered to who asks for them
// by two underscores.
func (y *typing) topics() []completions.Choice {
	if y.ownSandbox() {
		return y.topicsToBe()
	}
	return y.ask(completions.Topics(strings.HasPrefix(y.word, "__")))
}

// topicsToBe are those that a sandbox of the command itself will have.
func (y *typing) topicsToBe() []completions.Choice {
	var names []string
	for _, s := range y.flagValues("topic") {
		name, _, _ := strings.Cut(s, ":")
		names = append(names, name)
	}
	for _, s := range y.flagValues("load") {
		name, _, _ := strings.Cut(s, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	return completions.Words(slices.Compact(names)...)
}

func (y *typing) transactions() []completions.Choice {
	return y.ask(completions.TransactionalIDs(false))
}

func (y *typing) openTransactions() []completions.Choice {
	return y.ask(completions.TransactionalIDs(true))
}

// fence is what "drain --fence" takes.
func (y *typing) fence() []completions.Choice {
	all := completions.Choice{Word: fenceAll, About: "whoever holds records in scope"}
	return append([]completions.Choice{all}, y.openTransactions()...)
}

// topicPartitions is TOPIC:PARTITION:OFFSETS, as far as the cluster knows it.
func (y *typing) topicPartitions() []completions.Choice {
	topic, _, chosen := strings.Cut(y.word, ":")
	var out []completions.Choice
	if chosen {
		out = behind(topic+":", y.ask(completions.Partitions(topic)))
	} else {
		out = y.topics()
	}
	for i := range out {
		out[i].Word, out[i].Open = out[i].Word+":", true
	}
	return out
}

// partitionsOfFlag are those of the topic that --topic names.
func (y *typing) partitionsOfFlag() []completions.Choice {
	topic := y.flag("topic")
	if several := y.flagValues("topic"); len(several) > 0 {
		topic = several[len(several)-1]
	}
	if topic == "" {
		return nil
	}
	return y.ask(completions.Partitions(topic))
}

// partitionsOfArgument are those of the topic that is the argument before.
func (y *typing) partitionsOfArgument() []completions.Choice {
	return y.ask(completions.Partitions(y.args[len(y.args)-1]))
}

// nameLevel is NAME=LEVEL of a feature, in the direction in which the command
// goes.
func (y *typing) nameLevel() []completions.Choice {
	step := completions.AnyLevel
	switch commandPath(y.cmd) {
	case "feature upgrade":
		step = completions.Up
	case "feature downgrade":
		step = completions.Down
	}
	if out := y.ask(completions.Features(y.word, step)); out != nil {
		return out
	}
	return completions.ReleasedFeatures(y.word)
}

// levelOfFeature is the level for the next --feature that has none.
func (y *typing) levelOfFeature() []completions.Choice {
	bare := slices.DeleteFunc(slices.Clone(y.flagValues("feature")), func(s string) bool { return strings.Contains(s, "=") })
	n := len(y.flagValues("version"))
	if n >= len(bare) {
		return nil
	}
	prefix := bare[n] + "="
	at := *y
	at.word = prefix
	out := at.nameLevel()
	for i := range out {
		out[i].Word = strings.TrimPrefix(out[i].Word, prefix)
	}
	return out
}

// faults are those that a sandbox suffers from.
func (y *typing) faults() []completions.Choice {
	return y.fromSandbox(func(s sandbox.State) []completions.Choice {
		var out []completions.Choice
		for _, f := range s.Faults {
			out = append(out, completions.Choice{Word: f.ID, About: strconv.Itoa(f.Hits) + " hits"})
		}
		return out
	})
}

func (y *typing) sandboxNodes() []completions.Choice {
	return y.fromSandbox(func(s sandbox.State) []completions.Choice {
		var out []completions.Choice
		for _, b := range s.Brokers {
			out = append(out, completions.Choice{Word: strconv.Itoa(int(b.NodeID)), About: b.Address})
		}
		return out
	})
}

func (y *typing) fromSandbox(choose func(sandbox.State) []completions.Choice) []completions.Choice {
	ctx, cancel := context.WithTimeout(y.cmd.Context(), completions.Patience)
	defer cancel()
	state, err := y.sandboxState(ctx)
	if err != nil {
		return nil
	}
	return choose(state)
}
