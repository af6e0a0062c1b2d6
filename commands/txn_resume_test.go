package commands

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/txn"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
)

func goldenToken() txn.Token {
	return txn.Token{
		TransactionalID: "billing-1", ProducerID: 4000, ProducerEpoch: 3, ClusterID: "golden", Dialect: "kip", GroupIDs: []string{"billing"},
		Created: pendingNoon.Add(-time.Minute), Deadline: pendingNoon.Add(time.Minute),
	}
}

func TestTxnEndParsing(t *testing.T) {
	token := goldenToken()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := txnEndOptions{Token: token, Decision: decideCommit}
	abort := want
	abort.Decision, abort.DryRun = decideAbort, true
	look := txnEndOptions{Token: token}
	for _, c := range []struct {
		cmd  func(*Deps, runFunc[txnEndOptions, *txnEndResult]) *cobra.Command
		args string
		want txnEndOptions
	}{
		{newTxnResumeCmd, "--commit|" + token.String(), want},
		{newTxnResumeCmd, "--abort|--dry-run|--token-file|" + file, abort},
		{newTxnCommitCmd, "--token-file|" + file, want},
		{newTxnDescribeCmd, token.String(), look},
		{newTxnDescribeCmd, "token: " + token.String(), look},
		{newTxnDescribeCmd, "billing-1", txnEndOptions{TransactionalID: "billing-1"}},
	} {
		if got, err := parseAct(t, c.cmd, c.args, true); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s = %+v, %v, want %+v", c.args, got, err, c.want)
		}
	}
}

func TestTxnEndUsage(t *testing.T) {
	token := goldenToken().String()
	for args, want := range map[string]string{
		"":                                 "want --commit or --abort",
		"--commit|--abort|" + token:        "want --commit or --abort",
		"--commit":                         "needs a token",
		"--commit|" + token + "|" + token:  "takes one token, and got 2",
		"--commit|--token-file|x|" + token: "the token is given twice",
		"--commit|--token-file|nowhere":    "open nowhere",
		"--commit|--token-file|.":          "is a directory",
		"--commit|billing-1":               "transaction token: ",
		"--commit|" + token[:len(token)-1]: "transaction token: ",
		"--commit|--dialect|x|" + token:    `--dialect "x"`,
	} {
		wantUsage(t, "txn resume", args, want, func() error { _, err := parseAct(t, newTxnResumeCmd, args, true); return err })
	}
	for args, want := range map[string]string{
		token: "no terminal to confirm it on",
		"-":   "stdin has the token",
	} {
		wantUsage(t, "txn commit", args, want, func() error { _, err := parseAct(t, newTxnCommitCmd, args, false); return err })
	}
	wantUsage(t, "txn describe", "", "is damaged", func() error { _, err := parseAct(t, newTxnDescribeCmd, token[:20], true); return err })
	wantUsage(t, "txn abort", "", "a token names its transaction by itself", func() error {
		_, err := parseAct(t, newTxnAbortCmd, "--force|"+token, true)
		return err
	})
}

// The outcome is told plainly, and each has its exit code.
// A pipe from the command that prepared has the token, whatever the format.
func TestTokenInWhatWasPrinted(t *testing.T) {
	token := goldenToken()
	res := &ackResult{
		Items: []ackItem{{Topic: "orders", Count: 1, Acknowledge: "accept", Result: ackPrepared}}, Outcome: ackPrepared,
		TransactionalID: token.TransactionalID, Token: new(token.String()),
	}
	for _, format := range []output.Format{output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatYAML} {
		d, stdout, _ := showing(globalFlags{Output: format})
		if err := d.showToken(ackView(res), res, nil); err != nil {
			t.Fatal(err)
		}
		if got, err := parseToken(stdout.String()); err != nil || !reflect.DeepEqual(got, token) {
			t.Errorf("%s: %+v, %v; want %+v", format, got, err, token)
		}
	}
	other := token
	other.TransactionalID = "billing-2"
	both := token.String() + "\n" + other.String()
	if _, err := parseToken(both); err == nil || !strings.Contains(err.Error(), "2 different tokens") {
		t.Errorf("two tokens: %v, want them refused", err)
	}
	if got, err := parseToken(token.String() + "\n" + token.String()); err != nil || !reflect.DeepEqual(got, token) {
		t.Errorf("the same twice: %+v, %v; want it", got, err)
	}
	for text, hint := range map[string]string{
		"billing-1":         "kshare txn fence",
		token.String()[:20]: "take it whole",
		"token: " + token.String()[:20] + "  \n\n": "take it whole",
		"": "may have died",
	} {
		_, err := parseToken(text)
		if code, got := classify(err); code != exitUsage || !strings.Contains(got, hint) {
			t.Errorf("%q: %v, code %d, hint %q; want one about %q", text, err, code, got, hint)
		}
	}
}

func TestTxnEndTells(t *testing.T) {
	none := errors.New("x")
	for _, c := range []struct {
		name, decision string
		late           bool
		before, after  txn.Outcome
		err            error
		result         string
		outcome        string
		text           string // a part
		code           int
	}{
		{"committed", decideCommit, false, txn.OutcomeOpen, txn.OutcomeCommitted, nil, "committed", "committed", "committed", 0},
		{"again", decideCommit, false, txn.OutcomeCommitted, txn.OutcomeCommitted, nil, "already_committed", "committed", "already", 0},
		{"aborted before", decideCommit, false, txn.OutcomeAborted, txn.OutcomeAborted, &txn.AbortedError{}, "already_aborted", "aborted", "cannot be committed", 11},
		{"aborted meanwhile", decideCommit, false, txn.OutcomeOpen, txn.OutcomeAborted, &txn.AbortedError{Err: kerr.ProducerFenced}, "already_aborted", "aborted", "cannot be committed", 11},
		{"aborted at its deadline", decideCommit, true, txn.OutcomeOpen, txn.OutcomeAborted, &txn.AbortedError{Err: kerr.InvalidTxnState}, "already_aborted", "aborted", "past its deadline", 11},
		{"committed before", decideAbort, false, txn.OutcomeCommitted, txn.OutcomeCommitted, &txn.CommittedError{}, "already_committed", "committed", "cannot be aborted", 11},
		{"lost", decideCommit, false, txn.OutcomeOpen, txn.OutcomeUnknown, &txn.OutcomeUnknownError{Err: none}, "unknown", "unknown", "not known", 9},
		{"fenced", decideCommit, false, txn.OutcomeUnknown, txn.OutcomeUnknown, &txn.FencedError{Err: kerr.ProducerFenced}, "fenced", "unknown", "cannot be told", 8},
		{"not known", decideAbort, false, txn.OutcomeUnknown, txn.OutcomeUnknown, &txn.NotKnownError{}, "not_known", "unknown", "cannot be told", 9},
		{"failed", decideAbort, false, txn.OutcomeOpen, txn.OutcomeOpen, none, "failed", "open", "could not", 1},
		{"dry", decideAbort, true, txn.OutcomeOpen, txn.OutcomeOpen, nil, "planned", "open", "would be aborted, and it is past its deadline", 0},
		{"open", "", false, txn.OutcomeOpen, txn.OutcomeOpen, nil, "described", "open", "aborts it at 2026", 0},
		{"late", "", true, txn.OutcomeOpen, txn.OutcomeOpen, nil, "described", "open", "about to abort it", 0},
	} {
		now := pendingNoon
		if c.late {
			now = now.Add(time.Hour)
		}
		e := newTxnEnd(goldenToken(), c.decision, now)
		e.tell(c.before, c.after, c.err)
		if e.Result != c.result || e.Outcome != c.outcome || !strings.Contains(e.Text, c.text) || (e.Error != nil) != (c.err != nil) {
			t.Errorf("%s: %+v", c.name, e)
		}
		if code, hint := classify(resumeError(c.err)); code != c.code || code > 1 && hint == "" {
			t.Errorf("%s: ends with %d, hint %q, want %d", c.name, code, hint, c.code)
		}
	}
}

// What finds out later is in the hint.
func TestOutcomeHint(t *testing.T) {
	u := &txn.OutcomeUnknownError{TransactionalID: "billing-1", ProducerID: 4000, Began: pendingNoon, Err: context.DeadlineExceeded}
	if _, hint := classify(u); !strings.Contains(hint, "kshare txn describe "+u.Token().String()+"'") {
		t.Errorf("hint %q", hint)
	}
}

func TestTxnEndGolden(t *testing.T) {
	end := func(decision string, before, after txn.Outcome, err error) txnEnd {
		e := newTxnEnd(goldenToken(), decision, pendingNoon)
		e.State = new("Ongoing")
		e.tell(before, after, err)
		return e
	}
	fenced := end(decideCommit, txn.OutcomeUnknown, txn.OutcomeUnknown, &txn.FencedError{TransactionalID: "billing-1", CurrentEpoch: 9, Err: kerr.ProducerFenced})
	fenced.State = nil
	resume := txnResumeView(&txnEndResult{ClusterID: "golden", Items: []txnEnd{end(decideCommit, txn.OutcomeOpen, txn.OutcomeCommitted, nil), fenced}})
	describe := txnDescribeView(&txnEndResult{ClusterID: "golden", Items: []txnEnd{end("", txn.OutcomeOpen, txn.OutcomeOpen, nil)}})
	resume.Time, describe.Time = pendingNoon, pendingNoon
	golden(t, filepath.Join("testdata", "txn_resume.golden"), allFormats(t, resume))
	golden(t, filepath.Join("testdata", "txn_describe.golden"), allFormats(t, describe))
}
