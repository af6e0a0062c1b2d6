//go:build unix

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	kcluster "github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/need"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/twmb/franz-go/pkg/kgo"
)

// typed is what somebody types before TAB.
type typed struct {
	line string
	want string // the line after that, in bash and zsh
	fish string // what fish offers in place of the last word, one a line
}

// hostile would leave a file if a shell ran it.
const hostile = "$(touch pwned)"

// typedLines are lines on a cluster whose address is in the variable B, in a
// directory with files. Ambiguous ones go on as far as they can.
func typedLines() []typed {
	return []typed{
		{"kshare inspect gr", "kshare inspect group ", "group"},
		{"kshare drain --command-c", "kshare drain --command-config ", "--command-config"},
		{"kshare drain --color=al", "kshare drain --color=always ", "--color=always"},
		{"kshare drain --context pr", "kshare drain --context prod ", "prod"},

		{"kshare inspect group -b $B billi", "kshare inspect group -b $B billing ", "billing"},
		{`kshare inspect group -b "$B" billi`, `kshare inspect group -b "$B" billing `, "billing"},
		{"kshare inspect group -b $B bil", "kshare inspect group -b $B bill", "bill:eu\nbill:us\nbilling"},
		{"kshare inspect group -b $B bill:e", "kshare inspect group -b $B bill:eu ", "bill:eu"},
		{"kshare inspect pending -b $B --group bill:e", "kshare inspect pending -b $B --group bill:eu ", "bill:eu"},
		{"kshare inspect pending -b $B --group=bill:e", "kshare inspect pending -b $B --group=bill:eu ", "--group=bill:eu"},
		{"kshare txn fence -b $B copy", "kshare txn fence -b $B copy-1 ", "copy-1"},
		{"kshare inspect group -b $B none", "kshare inspect group -b $B none", ""},

		{"kshare ack -b $B --accept or", "kshare ack -b $B --accept orders:", "orders:"},
		{"kshare ack -b $B --accept orders:1", "kshare ack -b $B --accept orders:1:", "orders:1:"},
		{"kshare feature plan -b $B transaction", "kshare feature plan -b $B transaction.version=", "transaction.version="},
		{"kshare feature plan -b $B share.version=1", "kshare feature plan -b $B share.version=1 ", "share.version=1"},
		{"kshare inspect txn --state Ongoing,CompleteC", "kshare inspect txn --state Ongoing,CompleteCommit ", "Ongoing,CompleteCommit"},

		// Blanks and quotes.
		{"kshare inspect group -b $B my", `kshare inspect group -b $B my\ group\ `, "my group a\nmy group b"},
		{`kshare inspect group -b $B my\ group\ a`, `kshare inspect group -b $B my\ group\ a `, "my group a"},
		{`kshare inspect group -b $B "my group a`, `kshare inspect group -b $B "my group a" `, "my group a"},
		{`kshare inspect group -b $B 'bill:e`, `kshare inspect group -b $B 'bill:eu' `, "bill:eu"},
		{"kshare inspect group -b $B it", `kshare inspect group -b $B it\'s `, "it's"},

		// Nothing is run, neither what is typed nor what somebody has called a group.
		{`kshare inspect group -b $B \$`, `kshare inspect group -b $B \$\(touch\ pwned\)`, hostile + "1\n" + hostile + "2"},
		{"kshare inspect group -b $B '" + hostile + "1' billi", "kshare inspect group -b $B '" + hostile + "1' billing ", "billing"},
		{"kshare -b " + hostile + " inspect gr", "kshare -b " + hostile + " inspect group ", "group"},

		{"kshare drain --command-config d/a", "kshare drain --command-config d/a.properties ", "d/a.properties"},
		{"kshare drain --command-config d/m", `kshare drain --command-config d/my\ c.properties `, "d/my c.properties"},
		{"kshare drain --command-config d/sub/", "kshare drain --command-config d/sub/other ", "d/sub/other"}, // nothing has the extension
		{"kshare ack --from-file d/b", "kshare ack --from-file d/b.txt ", "d/b.txt"},
		{"kshare ack --from-file=d/b", "kshare ack --from-file=d/b.txt ", "--from-file=d/b.txt"},
		{"kshare sandbox run --data-dir d/", "kshare sandbox run --data-dir d/sub/", "d/sub/"},
		{"kshare version d/", "kshare version d/", ""},
		{"kshare drain --color d/", "kshare drain --color d/", ""},
	}
}

// The scripts complete live names in the shells themselves.
func TestCompletionInShells(t *testing.T) {
	t.Parallel()
	servers := startForCompletion(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"d/a.properties": "", "d/b.txt": "", "d/my c.properties": "", "d/sub/other": "",
		"config.yaml": "contexts: [{name: prod, bootstrap_server: 'h:1'}]",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const withPackage = "/usr/share/bash-completion/bash_completion"
	for _, c := range []struct {
		name, shell string
		complete    func(t *testing.T, sh *completingShell, lines []typed) []string
		before      string
		needs       string // a file
	}{
		{"bash", "bash", completeInBash, "", ""},
		{"bash with bash-completion", "bash", completeInBash, "source " + withPackage, withPackage},
		// What bash 3.2 lacks most; macOS has it.
		{"bash without compopt", "bash", completeInBash, "enable -n compopt", ""},
		{"zsh", "zsh", completeInZsh, "", ""},
		{"zsh by its name", "zsh", completeInZsh, "mkdir -p f; cp $SCRIPT f/_kshare; fpath=($PWD/f $fpath)", ""},
		{"fish", "fish", completeInFish, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			needShell(t, c.shell, c.needs)
			script, err := filepath.Abs("../../completions/kshare." + c.shell)
			if err != nil {
				t.Fatal(err)
			}
			sh := &completingShell{name: c.shell, dir: dir, script: script, before: c.before, env: []string{
				"B=" + servers, "KSHARE_CONFIG=" + filepath.Join(dir, "config.yaml"), "HOME=" + dir,
				"XDG_CONFIG_HOME=" + dir, "INPUTRC=/dev/null", "TERM=dumb", "GORACE=atexit_sleep_ms=0",
			}}
			left := typedLines()
			if c.before != "" {
				left = otherwise(left)
			}
			// A cluster that answers too late, as on a busy machine, completes
			// nothing: then it is asked again.
			for range 20 {
				left = notCompleted(t, c.complete(t, sh, left), left, c.shell == "fish")
				if len(left) == 0 {
					break
				}
			}
			for _, l := range left {
				t.Errorf("%s is not completed to %q (fish: %q)", l.line, l.want, l.fish)
			}
			if _, err := os.Stat(filepath.Join(dir, "pwned")); err == nil {
				t.Error("something that was completed was run")
			}
			for _, bad := range []string{"kshare:", "not found", "rror", "Completion ended"} {
				if strings.Contains(sh.screen.String(), bad) {
					t.Errorf("completing has written %q:\n%s", bad, sh.screen.String())
				}
			}
		})
	}
}

// otherwise returns some of the lines, for a shell that is not as it usually is.
func otherwise(lines []typed) []typed {
	var out []typed
	for _, l := range lines {
		for _, part := range []string{"inspect gr", " bil", "=bill:e", " my", "d/m", "d/b", "d/", "version=1"} {
			if strings.HasSuffix(l.line, part) {
				out = append(out, l)
			}
		}
	}
	return out
}

// notCompleted returns the lines that have not become what is wanted.
func notCompleted(t *testing.T, got []string, lines []typed, fish bool) []typed {
	t.Helper()
	if len(got) != len(lines) {
		t.Fatalf("the shell completed %d lines, want %d: %q", len(got), len(lines), got)
	}
	var left []typed
	for i, l := range lines {
		want := l.want
		if fish {
			want = l.fish
		}
		if got[i] != want {
			t.Logf("%s became %q, want %q", l.line, got[i], want)
			left = append(left, l)
		}
	}
	return left
}

// In bash the choices are listed with what is known of each.
func TestCompletionIsListed(t *testing.T) {
	t.Parallel()
	needShell(t, "bash", "")
	script, err := filepath.Abs("../../completions/kshare.bash")
	if err != nil {
		t.Fatal(err)
	}
	sh := &completingShell{name: "bash", dir: t.TempDir(), script: script, env: []string{
		"INPUTRC=/dev/null", "TERM=dumb", "COLUMNS=100", "GORACE=atexit_sleep_ms=0", "KSHARE_CONFIG=/none",
	}}
	completeInBash(t, sh, []typed{{line: "kshare drain --sasl-mechanism SCRAM-SHA-\t"}, {line: "kshare ctp --partition \t"}, {line: "kshare txn f\t"}})
	for _, want := range []string{
		"SCRAM-SHA-256  SCRAM-SHA-512", "hash  (by the hash of the key)  keep  (that of the source)",
		"fence         (Take transactional IDs from their producers, which aborts what is open)",
	} {
		if !strings.Contains(strings.Join(strings.Fields(sh.screen.String()), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("the list has no %q:\n%s", want, sh.screen.String())
		}
	}
}

// needShell skips the test where a shell is not installed, or a file that it
// reads. In CI it fails instead: there a test that did not run is no test.
func needShell(t *testing.T, name, file string) {
	t.Helper()
	_, err := exec.LookPath(name)
	if err == nil && file != "" {
		_, err = os.Stat(file)
	}
	if err == nil && name == "bash" {
		// Older ones do not tell what the line has become.
		err = exec.CommandContext(t.Context(), "bash", "-c", "((BASH_VERSINFO[0] >= 4))").Run()
	}
	if err != nil {
		err = fmt.Errorf("completion in %s: %w", name, err)
	}
	need.None(t, err)
}

// completingShell is a shell with the script of completion.
type completingShell struct {
	name, dir, script string
	before            string // what it does first; zsh then finds the script by itself
	env               []string
	screen            bytes.Buffer // all that it has written
}

// run runs the shell to its end with a script of its own, and returns the file
// $RESULT, which that writes.
func (s *completingShell) run(t *testing.T, script, stdin string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	work := t.TempDir()
	file, result := filepath.Join(work, "script"), filepath.Join(work, "result")
	for path, text := range map[string]string{file: script, result: ""} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(ctx, s.name, append(args, file)...)
	if stdin != "" {
		cmd.Args = append(cmd.Args, "-i")
		cmd.Stdin = strings.NewReader(stdin)
	}
	cmd.Dir = s.dir
	cmd.Env = append(slices.Concat(os.Environ(), s.env), "RESULT="+result, "SCRIPT="+s.script)
	cmd.Stdout, cmd.Stderr = &s.screen, &s.screen
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); ctx.Err() != nil {
		t.Fatalf("%s: %v\n%s", s.name, err, s.screen.String())
	}
	b, err := os.ReadFile(result)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// completeInBash types lines to bash, and a TAB behind each.
func completeInBash(t *testing.T, s *completingShell, lines []typed) []string {
	t.Helper()
	// C-g notes what the line is, C-u clears it.
	var keys strings.Builder
	for _, l := range lines {
		keys.WriteString(l.line + "\t\a\x15")
	}
	out := s.run(t, `PS1=
bind 'set bell-style none'
bind 'set page-completions off'
bind -x '"\C-g": printf "%s\n" "$READLINE_LINE" >>"$RESULT"'
`+s.before+`
source "$SCRIPT"
`, keys.String(), "--rcfile")
	return strings.Split(strings.TrimSuffix(out, "\n"), "\n")
}

// completeInZsh does the same on a terminal of zsh's own, which it needs.
func completeInZsh(t *testing.T, s *completingShell, lines []typed) []string {
	t.Helper()
	var all strings.Builder
	for _, l := range lines {
		all.WriteString(l.line + "\n")
	}
	linesFile := filepath.Join(t.TempDir(), "lines")
	if err := os.WriteFile(linesFile, []byte(all.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	load := `source "$SCRIPT"`
	if s.before != "" {
		load = ""
	}
	out := s.run(t, `zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PS1=; `+s.before+`'
zpty -w shell 'autoload -Uz compinit; compinit -D -u; `+load+`'
zpty -w shell 'note() { print -r -- "$LBUFFER" >>$RESULT; zle kill-whole-line; print -r -- NO""TED }'
zpty -w shell 'zle -N note; bindkey "^G" note; bindkey "^I" complete-word; unsetopt beep; print REA""DY'
zpty -r -m shell screen '*READY*'
while IFS= read -r line; do
    zpty -n -w shell "$line"$'\t\a'
    zpty -r -m shell screen '*NOTED*' || exit 1
    print -r -- "$screen"
done <`+linesFile+`
zpty -d shell
`, "", "-f")
	return strings.Split(strings.TrimSuffix(out, "\n"), "\n")
}

// completeInFish asks fish what it would offer.
func completeInFish(t *testing.T, s *completingShell, lines []typed) []string {
	t.Helper()
	var script strings.Builder
	script.WriteString("source $SCRIPT\n")
	quote := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	for _, l := range lines {
		script.WriteString("complete -C '" + quote.Replace(l.line) + "' | string replace -r '\\t.*' '' >>$RESULT; printf '\\0' >>$RESULT\n")
	}
	out := s.run(t, script.String(), "", "--no-config")
	var got []string
	for choices := range strings.SplitSeq(strings.TrimSuffix(out, "\x00"), "\x00") {
		got = append(got, strings.TrimSuffix(choices, "\n"))
	}
	return got
}

// startForCompletion starts a sandbox that has names, and returns its servers.
func startForCompletion(t *testing.T) string {
	t.Helper()
	sb, err := sandbox.Start(t.Context(), sandbox.WithTopics(sandbox.Topic{Name: "orders", Partitions: 3}, sandbox.Topic{Name: "shipped", Partitions: 1}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sb.Close() })
	cl, err := kcluster.Connect(t.Context(), kcluster.Config{BootstrapServers: sb.Addrs()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	for _, id := range []string{"billing", "bill:eu", "bill:us", "my group a", "my group b", "it's", hostile + "1", hostile + "2"} {
		m, err := share.NewConsumer(t.Context(), cl, share.Config{GroupID: id, Topics: []string{"orders"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Close(t.Context()); err != nil { // the group stays
			t.Fatal(err)
		}
	}
	producer, err := cl.NewKgo(kgo.TransactionalID("copy-1"), kgo.DefaultProduceTopic("shipped"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(producer.Close)
	if err := producer.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := producer.ProduceSync(t.Context(), &kgo.Record{}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return sb.BootstrapServers()
}
