//go:build unix

package main

import (
	"path"
	"strings"
	"testing"

	"github.com/kshare/kshare/internal/mdtest"
)

// exampleFiles are the files that examples name.
const exampleFiles = `head -n 12 examples/orders.ndjson >orders.ndjson
cp orders.ndjson records.txt
cp orders.ndjson app.log
echo 'accept orders:0:4-5' >offsets.txt
printf '%s\n' bootstrap.servers=broker1:9093 security.protocol=PLAINTEXT >client.properties`

// exampleCluster is the cluster that examples are run on: a sandbox with a topic of
// twelve records, four of which the group billing is done with.
const exampleCluster = `kshare -q ctp --from orders --to shipped --group billing --auto-offset-reset earliest --isolation-level read_committed --max-records 4 >/dev/null
hang() {
	kshare -q txn prepare --transactional-id "$1" --produce shipped=records.txt --yes >/dev/null &&
		kshare sandbox fault inject forget-transaction --transactional-id "$1" >/dev/null
}
hold() { kshare -q txn prepare --transactional-id "$1" --group billing --accept "orders:0:$2" --token-file token.txt --txn-timeout 10m --yes >/dev/null 2>&1; }`

// noCluster are the commands whose examples need none.
var noCluster = map[string]bool{
	"kshare completion": true, "kshare demo": true, "kshare feature dependencies": true, "kshare feature mapping": true,
	"kshare sandbox": true, "kshare sandbox run": true, "kshare version": true, "kshare config": true, "kshare config check": true,
	"kshare config delete-context": true, "kshare config get-contexts": true, "kshare config set-context": true,
	"kshare config use-context": true, "kshare config view": true,
}

// sandboxFlags are further flags of the sandbox that examples of a command need.
var sandboxFlags = map[string]string{
	"kshare feature upgrade": "--share-version 0",
	"kshare inspect metrics": "--control 127.0.0.1:9404",
	"kshare txn abort":       "--load shipped=numbers.txt",
}

// example is what is known of a line that is an example.
type example struct {
	// before is run first, in the same shell.
	before string
	// until is what it prints when it is ready, if it runs until it is stopped;
	// then it gets a SIGINT.
	until string
	// code is its exit status, 0 if it is not here.
	code int
	// replace are values that an example cannot know, and what has them.
	replace map[string]string
	// unrun is why it is not run.
	unrun string
}

const (
	prod   = "kshare config set-context prod -b 127.0.0.1:9092 >/dev/null"
	served = "127.0.0.1:" // of the first line of a sandbox
)

// exampleLines has the examples that take something for granted, or that do not end
// with 0 by themselves.
var exampleLines = map[string]example{
	"kshare config check":                                                 {before: "kshare config set-context prod -b broker1:9093 >/dev/null"},
	"kshare config delete-context test":                                   {before: "kshare config set-context test -b broker1:9093 >/dev/null"},
	"kshare config use-context prod":                                      {before: "kshare config set-context prod -b broker1:9093 >/dev/null"},
	"kshare ctp -b localhost:9092 --from orders --to shipped":             {until: "the share group reads uncommitted records", code: 130},
	"kshare doctor --context prod --group billing --topic orders":         {before: prod},
	"kshare drain --fence all --abort-hanging --dry-run":                  {before: "hold billing-1 4-6"},
	"kshare feature downgrade share.version=1 --drain --timeout 5m --yes": {before: "kshare feature upgrade --enable txn-acks --yes >/dev/null 2>&1"},
	"kshare inspect group billing audit -o json": {
		before: "kshare -q ctp --from orders --to shipped --group audit --auto-offset-reset earliest --max-records 1 >/dev/null 2>&1",
	},
	"kshare inspect metrics --endpoint b1:9404 --endpoint b2:9404 --for 60s --check":       {unrun: "needs two brokers, and a minute"},
	"kshare inspect metrics --jolokia http://b1:8778/jolokia/ -o json":                     {unrun: "needs a Jolokia agent"},
	"kshare inspect pending -b localhost:9092":                                             {before: "hold billing-1 4-6"},
	"kshare inspect pending --group billing --wait --timeout 2m":                           {before: "kshare -q txn fence billing-1 --yes >/dev/null"},
	"kshare inspect pending --watch --interval 5s":                                         {until: `{"kind":"inspect.pending"`, code: 130},
	"kshare inspect txn billing-7 -o json":                                                 {before: "hold billing-7 4-6"},
	"kshare sandbox run --topic orders":                                                    {until: served},
	"kshare sandbox run --topic orders:3":                                                  {until: served},
	"kshare sandbox run --topic orders:3 --topic shipped":                                  {until: served},
	"kshare sandbox run --load orders=examples/orders.ndjson -o json":                      {until: "\n}\n"},
	"tail -n 100 app.log | kshare sandbox run --load log=-":                                {until: served},
	"kshare sandbox run --brokers 3 --port 9092 --profile draft --data-dir ./sandbox-data": {until: served},
	"kshare sandbox run --broker-config group.share.record.lock.duration.ms=15000":         {until: served},
	"kshare sandbox fault clear delay-marker-1":                                            {before: "kshare sandbox fault inject delay-marker >/dev/null"},
	"kshare txn abort --token-file token.txt --yes":                                        {before: "hold billing-1 4-6"},
	"kshare txn abort --topic shipped --partition 0 --start-offset 1200 --yes":             {before: "hang shipping-1"},
	"kshare txn abort --topic shipped --partition 0 --producer-id 4000 --producer-epoch 0 --yes": {
		before:  "hang shipping-2; producer=$(kshare inspect txn --hanging -o json | sed -n 's/^ *\"producer_id\": \\([0-9]*\\),*$/\\1/p' | head -n 1)",
		replace: map[string]string{"4000": "$producer"},
	},
	"kshare txn abort --topic __share_group_state --partition 7 --producer-id 4000 --producer-epoch 0 --dry-run": {
		before: `rm token.txt && hold billing-2 7-8 && kshare sandbox fault inject drop-marker --count 1 >/dev/null && kshare -q txn fence billing-2 --yes >/dev/null
value() { kshare inspect pending -o json | sed -n "s/^ *\"$1\": \([0-9]*\),*$/\1/p" | head -n 1; }
producer=$(value producer_id) state=$(value state_partition)`,
		replace: map[string]string{"4000": "$producer", "--partition 7": "--partition $state"},
	},
	"kshare txn fence billing-1 --dry-run":                       {before: "hold billing-1 4-6"},
	"kshare txn fence billing-1 billing-2 --yes":                 {before: "rm token.txt; hold billing-2 7-8"},
	"kshare txn commit --token-file token.txt --yes":             {before: "hold billing-1 4-6"},
	"kshare txn describe --token-file token.txt":                 {before: "hold billing-1 4-6"},
	"kshare txn resume --token-file token.txt --abort --dry-run": {before: "hold billing-1 4-6"},
}

// Every example of every command is run as it is printed, those of a command in one
// shell, on a sandbox of theirs. Examples that nothing is known of have to succeed.
func TestHelpExamples(t *testing.T) {
	t.Parallel()
	files, err := mdtest.Files("../../docs/cli")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	var sessions together
	defer sessions.wait()
	for _, file := range files {
		p, err := mdtest.Read("../../docs/cli", file)
		if err != nil {
			t.Fatal(err)
		}
		command := strings.ReplaceAll(strings.TrimSuffix(path.Base(file), ".md"), "_", " ")
		lines := examplesOf(p)
		for _, line := range lines {
			seen[line] = true
		}
		if len(lines) == 0 {
			continue
		}
		sessions.run(t, strings.ReplaceAll(command, " ", "_"), func(t *testing.T) { runExamples(t, command, lines) })
	}
	for line := range exampleLines {
		if !seen[line] {
			t.Errorf("exampleLines has %q, which is no example of a command", line)
		}
	}
	if len(seen) < 80 {
		t.Errorf("%d examples, want at least 80", len(seen))
	}
}

// examplesOf returns the lines of the block below the heading "Examples".
func examplesOf(p *mdtest.Page) []string {
	var lines []string
	for _, b := range p.Blocks {
		if b.Under != "Examples" {
			continue
		}
		for line := range strings.Lines(b.Text) {
			if line = strings.TrimSpace(line); line != "" {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

func runExamples(t *testing.T, command string, lines []string) {
	s := newShell(t)
	setUp := func(what string) {
		t.Helper()
		if out, code := s.run(what, nil); code != 0 {
			t.Fatalf("%s\n%sended with %d", what, out, code)
		}
	}
	setUp(exampleFiles)
	if !noCluster[command] {
		setUp("seq 1195 >numbers.txt") // then there are four copies, and their marker
		run := "kshare sandbox run --port 9092 --control 127.0.0.1:9099 --topic orders:1 --topic shipped:1 --topic big:1 --load orders=orders.ndjson " + sandboxFlags[command] + " &"
		if out, _ := s.run(run, func(out string) bool { return strings.Contains(out, served) }); !strings.Contains(out, served) {
			t.Fatalf("%s\n%s", run, out)
		}
		setUp("export KSHARE_BOOTSTRAP_SERVER=127.0.0.1:9092 KSHARE_SANDBOX_CONTROL=127.0.0.1:9099")
		if command != "kshare feature upgrade" { // which begins where there are no share groups
			setUp(exampleCluster)
		}
	}
	for _, line := range lines {
		e := exampleLines[line]
		if e.unrun != "" {
			continue
		}
		if e.before != "" {
			setUp(e.before)
		}
		run := line
		for old, value := range e.replace {
			run = strings.ReplaceAll(run, old, value)
		}
		var out string
		var code int
		if e.until != "" {
			out, _ = s.run(run+" &", func(out string) bool { return strings.Contains(out, e.until) })
			if !strings.Contains(out, e.until) {
				t.Errorf("%s\n%sis not ready: want %q", line, out, e.until)
			}
			_, code = s.run("kill -INT $!; wait $!", nil)
		} else {
			out, code = s.run(run, nil)
		}
		if code != e.code {
			t.Errorf("%s\n%sended with %d, want %d", line, out, code, e.code)
		}
		if testing.Verbose() {
			t.Logf("%s\n%s", line, out)
		}
	}
}
