package cmdtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/kshare/kshare/commands"
)

// Peer is what a command talks to.
type Peer int

// The peers.
const (
	Nobody  Peer = iota // it opens no connection, or only to a sandbox of its own
	Kafka               // brokers, named by -b
	Control             // the control address of a sandbox, over HTTP
	Metrics             // an endpoint for metrics, over HTTP
)

// Call is how tests that are about every command call one. It does its work on a
// cluster with the topics "in", of one partition, and "out", where share group
// "g" has "in" from the beginning, a transaction of the transactional ID "id" is
// open, and transactional acknowledgement is enabled.
type Call struct {
	Command string // without "kshare", such as "inspect pending"
	// Line is the rest, with words in braces for what the test has, see [Place].
	Line string
	Peer Peer
	// Asks is set for what changes the cluster and asks before. It has --yes.
	Asks bool
}

// Calls returns a call of every command. The slice is the caller's.
func Calls() []Call {
	return []Call{
		{"ack", "--group g --accept in:0:{offset} --yes -b {peer}", Kafka, true},
		{"completion", "bash", Nobody, false},
		{"config check", "", Nobody, false},
		{"config delete-context", "a", Nobody, false},
		{"config get-contexts", "", Nobody, false},
		{"config set-context", "b -b 127.0.0.1:1", Nobody, false},
		{"config use-context", "a", Nobody, false},
		{"config view", "", Nobody, false},
		// It is called to move records, and moves them: there is nothing to ask.
		{"ctp", "--from in --to out --group g2 --until-empty -b {peer}", Kafka, false},
		{"demo", "", Nobody, false},
		{"doctor", "-b {peer}", Kafka, false},
		{"drain", "--group g --abort-hanging --interval 100ms --quiet-period 100ms --yes -b {peer}", Kafka, true},
		{"feature dependencies", "", Nobody, false},
		{"feature describe", "-b {peer}", Kafka, false},
		{"feature downgrade", "share.version=1 --yes -b {peer}", Kafka, true},
		{"feature mapping", "", Nobody, false},
		{"feature matrix", "-b {peer}", Kafka, false},
		{"feature plan", "--enable txn-acks -b {peer}", Kafka, false},
		{"feature upgrade", "--enable txn-acks --yes -b {peer}", Kafka, true},
		{"help", "version", Nobody, false},
		{"inspect group", "g -b {peer}", Kafka, false},
		{"inspect metrics", "--endpoint {peer}", Metrics, false},
		{"inspect partition", "g in 0 -b {peer}", Kafka, false},
		{"inspect pending", "-b {peer}", Kafka, false},
		{"inspect txn", "-b {peer}", Kafka, false},
		// A sandbox is there to be broken: faults do not ask.
		{"sandbox fault clear", "--all --control {peer}", Control, false},
		{"sandbox fault inject", "expire-locks --control {peer}", Control, false},
		{"sandbox fault list", "--control {peer}", Control, false},
		{"sandbox run", "", Nobody, false},
		{"txn abort", "{token} --yes -b {peer}", Kafka, true},
		{"txn commit", "{token} --yes -b {peer}", Kafka, true},
		{"txn describe", "{token} -b {peer}", Kafka, false},
		{"txn fence", "id --yes -b {peer}", Kafka, true},
		{"txn find-hanging", "-b {peer}", Kafka, false},
		{"txn prepare", "--transactional-id {id} --produce out={file} --yes -b {peer}", Kafka, true},
		{"txn resume", "{token} --commit --yes -b {peer}", Kafka, true},
		{"version", "", Nobody, false},
	}
}

// Place is what the words in braces of a call stand for.
type Place struct {
	Peer   string // {peer}, the address of the peer
	Token  string // {token}, of a prepared transaction
	ID     string // {id}, a transactional ID that nobody uses
	Offset string // {offset}, one of in-0 that nobody has asked for
	File   string // {file}, a file with a line
}

// Args returns the arguments of the call at a place.
func (c Call) Args(p Place) []string {
	words := strings.NewReplacer("{peer}", p.Peer, "{token}", p.Token, "{id}", p.ID, "{offset}", p.Offset, "{file}", p.File)
	return strings.Fields(words.Replace(c.Command + " " + c.Line))
}

// Without returns the call without one of its words.
func (c Call) Without(word string) Call {
	words := slices.DeleteFunc(strings.Fields(c.Line), func(w string) bool { return w == word })
	c.Line = strings.Join(words, " ")
	return c
}

// Commands returns all commands that have no subcommands, sorted, and those that
// have some, "" first, for the root.
func Commands() (leaves, parents []string) {
	root := commands.Root()
	parents = []string{""}
	for queue := root.Commands(); len(queue) > 0; queue = queue[1:] {
		cmd := queue[0]
		queue = append(queue, cmd.Commands()...)
		path := strings.TrimPrefix(cmd.CommandPath(), root.Name()+" ")
		switch {
		case cmd.HasSubCommands():
			parents = append(parents, path)
		case !cmd.IsAdditionalHelpTopicCommand():
			leaves = append(leaves, path)
		}
	}
	slices.Sort(leaves)
	slices.Sort(parents)
	return leaves, parents
}

// AllCalls is Calls. It fails the test if a command has no call, or more than one,
// so that no test of every command forgets one.
func AllCalls(tb testing.TB) []Call {
	tb.Helper()
	calls := Calls()
	var have []string
	for _, c := range calls {
		have = append(have, c.Command)
	}
	if leaves, _ := Commands(); !slices.Equal(have, leaves) {
		tb.Fatalf("the calls in internal/cmdtest/calls.go are of the commands\n%q, want\n%q", have, leaves)
	}
	return calls
}
