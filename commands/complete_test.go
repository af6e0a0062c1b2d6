package commands

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/sandbox"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// completeLine completes a line whose last word is args' last, in a process that
// knows no cluster. It returns the choices and the directive.
func completeLine(t *testing.T, env map[string]string, args ...string) ([]string, cobra.ShellCompDirective) {
	t.Helper()
	var out, errOut bytes.Buffer
	code := Main(t.Context(), append([]string{cobra.ShellCompRequestCmd}, args...), Deps{
		In: strings.NewReader(""), Out: &out, ErrOut: &errOut,
		Getenv: func(k string) string { return env[k] },
		Now:    func() time.Time { return time.Time{} },
	})
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	last := lines[len(lines)-1]
	directive, err := strconv.Atoi(strings.TrimPrefix(last, ":"))
	if code != 0 || errOut.Len() > 0 || err != nil {
		t.Errorf("completing %q: code %d, stderr %q, stdout %q", args, code, errOut.String(), out.String())
	}
	return lines[:len(lines)-1], cobra.ShellCompDirective(directive)
}

// nobody is an environment in which there is no sandbox either.
func nobody() map[string]string { return map[string]string{"KSHARE_SANDBOX_CONTROL": "127.0.0.1:1"} }

// Of every flag that takes a value it is decided what that is completed to, and
// only those that take files complete them. What the tables have is there.
func TestEveryFlagCompletes(t *testing.T) {
	flags, args := flagWords(), argumentWords()
	usedFlags, usedArgs := map[string]bool{}, map[string]bool{}
	root := testTree(t)
	root.InitDefaultHelpCmd()
	walk(root, func(cmd *cobra.Command) {
		path := commandPath(cmd)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.NoOptDefVal != "" || f.Value.Type() == "bool" {
				return // takes no value
			}
			key := path + " --" + f.Name
			if _, ok := flags[key]; !ok {
				key = "--" + f.Name
			}
			w, ok := flags[key]
			if usedFlags[key] {
				return // the same as in another command
			}
			usedFlags[key] = true
			if !ok {
				t.Errorf("it is not decided what --%s of %q is completed to", f.Name, cmd.CommandPath())
				return
			}
			line := append(strings.Fields(path), "--"+f.Name, "")
			got, directive := completeLine(t, nobody(), line...)
			want := cobra.ShellCompDirectiveNoFileComp
			if w.shell {
				want = w.directive
			}
			if directive&want != want || !w.shell && directive&cobra.ShellCompDirectiveFilterFileExt != 0 {
				t.Errorf("%q: directive %d for %q, want %d", line, directive, got, want)
			}
		})
		line := append(strings.Fields(path), "")
		if _, directive := completeLine(t, nobody(), line...); directive&cobra.ShellCompDirectiveNoFileComp == 0 {
			t.Errorf("%q completes files", line)
		}
		_, known := args[path]
		usedArgs[path] = known
		takes := strings.ContainsAny(strings.SplitN(cmd.Use+" ", " --", 2)[0], "<{")
		token := slices.Contains([]string{"txn abort", "txn commit", "txn resume"}, path)
		if takes != known && !token {
			t.Errorf("arguments of %q (%s) are completed: %t", path, cmd.Use, known)
		}
	})
	for _, key := range slices.Sorted(maps.Keys(flags)) {
		if !usedFlags[key] {
			t.Errorf("flagWords has %q, and there is no such flag", key)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(args)) {
		if !usedArgs[path] {
			t.Errorf("argumentWords has %q, and there is no such command", path)
		}
	}
}

func TestEveryFaultKindIsExplained(t *testing.T) {
	n := 0
	for _, g := range faultGroups() {
		n += len(g.kinds)
	}
	for _, k := range sandbox.FaultKinds() {
		if faultAbout(k) == "" {
			t.Errorf("the help of fault inject does not have %s", k)
		}
	}
	if n != len(sandbox.FaultKinds()) {
		t.Errorf("the help of fault inject has %d kinds, want %d", n, len(sandbox.FaultKinds()))
	}
}

func TestCompleteWords(t *testing.T) {
	const (
		words = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
		open  = words | cobra.ShellCompDirectiveNoSpace
	)
	for _, c := range []struct {
		line      string // | ends words, the last is completed
		want      string
		directive cobra.ShellCompDirective
	}{
		{"inspect|pa", "partition\tShow one share-partition: offsets, persisted states, owners", words},
		{"version|", "", words},
		{"version|--q", "--quiet\tshow neither progress nor notices", cobra.ShellCompDirectiveNoFileComp},
		{"drain|--gro", "--group\tonly records of this share group; may be repeated", cobra.ShellCompDirectiveNoFileComp},
		{"drain|--color|", "auto/always/never", words},
		{"inspect|pending|--columns|topic", "topic/topic-id/topic-state", words},
		{"inspect|pending|--columns|group,TOPIC-", "group,TOPIC-ID/group,TOPIC-STATE", words},
		{"completion|--columns|", "", words},
		{"drain|--time-zone|", "UTC/Local\tthat of this machine", words},
		{"drain|--color=a", "auto/always", words},
		{"-o|j", "json\tone document, see its schema", words},
		{"drain|--dialect|k", "kip\tthe text that was voted on", words},
		{"drain|--sasl-mechanism|SCRAM", "SCRAM-SHA-256/SCRAM-SHA-512", words},
		{"drain|--command-config|x", "properties/conf/config/cfg", cobra.ShellCompDirectiveFilterFileExt},
		{"drain|--sasl-password-file|x", "", cobra.ShellCompDirectiveDefault},
		{"sandbox|run|--data-dir|x", "", cobra.ShellCompDirectiveFilterDirs},
		{"inspect|txn|--state|Ongoing,Complete", "Ongoing,CompleteCommit/Ongoing,CompleteAbort", words},
		{"inspect|txn|--state|Ongoing|--state|On", "", words},
		{"ctp|--partition|h", "hash\tby the hash of the key", words},
		{"ctp|--auto-offset-reset|by", "by_duration:\tan ISO 8601 duration, such as by_duration:PT1H", open},
		{"ctp|--sandbox|--topic|b:3|--topic|a|--load|b=x|--from|", "a/b", words},
		{"sandbox|run|--topic|b:3|--load|", "b=", open},
		{"config|set-context|x|--set|tls=", "tls=true/tls=false", words},
		{"config|set-context|x|--set|sasl_password", "sasl_password_file=\tfile with the password/sasl_password_command=\tcommand that writes the password", open},
		{"config|set-context|x|--unset|sasl_aws", "sasl_aws_profile\tAWS profile for AWS_MSK_IAM", words},
		{"config|set-context|x|--set|tls_ca=testda", "tls_ca=testdata/", open},
		{"sandbox|fault|inject|delay", "delay-marker\tare held back, for --duration or until cleared", words},
		{"sandbox|fault|inject|x|--error|FENCED_L", "FENCED_LEADER_EPOCH\tThe leader epoch in the request is older than the epoch on the broker", words},
		{"help|inspect|par", "partition\tShow one share-partition: offsets, persisted states, owners", words},
		{"help|exit", "exit-codes\tWhat the exit codes mean", words},
		{"completion|z", "zsh", words},
		{"completion|zsh|", "", words},
		{"feature|mapping|--release|4.0", "4.0", words},
		{"feature|plan|transaction", "transaction.version=\t0 to 2 in Kafka 4.4", open},
		{"feature|dependencies|share.version=1", "share.version=1\tshare groups (KIP-932)", words},
		{"feature|plan|--feature|group.version|--version|1", "1\tthe consumer rebalance protocol (KIP-848)", words},
		{"feature|plan|--version|", "", words},
		// What is wrong elsewhere does not matter.
		{"drain|--timeout|x|--nothing|--color|n", "never", words},
		// There is no cluster to ask.
		{"inspect|group|", "", words},
		{"ack|--accept|", "", words},
		{"drain|--fence|a", "all\twhoever holds records in scope", words},
		{"inspect|group|-b|h:1|--context|x|--tls-ca|/nothing|", "", words},
	} {
		got, directive := completeLine(t, nobody(), strings.Split(c.line, "|")...)
		if s := strings.Join(got, "/"); s != c.want || directive != c.directive {
			t.Errorf("%s: %q, %d, want %q, %d", c.line, s, directive, c.want, c.directive)
		}
	}
}
