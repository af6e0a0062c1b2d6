package commands

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/sandbox"
	"github.com/spf13/cobra"
)

// Every command has a result whose columns are known before it runs, but for those
// that write something else.
func TestEveryCommandHasAResult(t *testing.T) {
	d := &Deps{flags: &globalFlags{}}
	heading := regexp.MustCompile(`^[A-Z0-9]+(-[A-Z0-9]+)*$`)
	walk(testTree(t), func(cmd *cobra.Command) {
		if cmd.HasSubCommands() || cmd.IsAdditionalHelpTopicCommand() {
			return
		}
		path := strings.TrimPrefix(cmd.CommandPath(), "kshare ")
		views := d.viewsOf(path)
		if got, want := len(views) == 0, slices.Contains([]string{"completion", "help"}, path); got != want {
			t.Errorf("%s: has no result: %v, want %v", path, got, want)
		}
		for _, v := range views {
			for _, name := range v.ColumnNames() {
				if !heading.MatchString(name) {
					t.Errorf("%s: heading %q is not words in capitals, joined by dashes", path, name)
				}
				if name == "EPOCH" {
					t.Errorf("%s: heading %q does not say of what", path, name)
				}
			}
			if v.Table.Len()+v.Wide.Len() > 1 { // "sandbox run" and "version" have one row always
				t.Errorf("%s: rows in a view that has none", path)
			}
		}
	})
}

// What cannot be comes to light before anything is sent, and for programs as JSON.
func TestResultFlagsThatAreWrong(t *testing.T) {
	for _, c := range []struct {
		args, err, hint string
	}{
		{"inspect pending --columns group,nope", `--columns: there is no column "nope"`, "columns are GROUP, TOPIC, PARTITION, OFFSETS, COUNT, TRANSACTIONAL-ID,"},
		{"drain --yes --fence all --columns nope", `--columns: there is no column "nope"`, "columns are GROUP,"},
		{"feature describe --columns supported,broker", "--columns: the columns do not go together: they are those of different rows", "columns are FEATURE, SUPPORTED,"},
		{"inspect pending --columns verdict,oldest", "--columns: the columns do not go together", "columns are GROUP,"},
		{"inspect pending --columns group -o json", "--columns and --no-headers are for tables, and --output is json", "--output-jq"},
		{"inspect pending --no-headers -o yaml", "--columns and --no-headers are for tables, and --output is yaml", "--output-jq"},
		{"inspect pending --columns group --jq .", "--jq is for JSON, and --columns and --no-headers are for tables", ""},
		{"inspect pending --columns=", "--columns: the value is empty", ""},
		{"inspect pending --columns=group,", "--columns: the value is empty", ""},
		{"inspect txn --state ,", "--state: the value is empty", ""},
		{"doctor --transactional-id=", "--transactional-id: the value is empty", "leave the flag out"},
		{"doctor --group=a --group=", "--group: the value is empty", "leave the flag out"},
		{"version --timeout 5", `invalid argument "5" for "--timeout" flag`, "a duration has a unit: --timeout 5s, or 500ms"},
		{"drain --quiet-period=1.5", `invalid argument "1.5" for "--quiet-period" flag`, "--quiet-period 1.5s"},
		{"version --timeout -5", `invalid argument "-5" for "--timeout" flag`, "'kshare version --help'"},
		{"version --timeout soon", `invalid argument "soon" for "--timeout" flag`, "'kshare version --help'"},
		{"inspect pending --watch --columns group", "--watch writes JSON where stdout is no terminal", ""},
		{"inspect pending --jq {", `--jq: jq expression "{": unexpected EOF`, "quote the expression"},
		{"inspect pending --output-jq {", `--output-jq: jq expression "{": unexpected EOF`, "quote the expression"},
		{"inspect pending --jq input", `--jq: jq expression "input"`, ""},
		{"inspect pending --jq . --output-jq .", "--jq and --output-jq are the same: give one of them", ""},
		{"inspect pending --jq . -o yaml", "--jq is for JSON, and --output is yaml", ""},
		{"inspect pending -o table --jq .", "--jq is for JSON, and --output is table", ""},
		{"inspect pending --jq=", "--jq: the value is empty", ""},
		{"inspect pending -r", "--raw-output is for --output-jq", ""},
		{"ctp --from a --to b --jq . -r", "--raw-output is for --output-jq", ""},
		{"ctp --from a --to b --jq . --output-jq {", `--output-jq: jq expression "{"`, ""},
		{"completion bash --jq .", `--jq: "kshare completion" has no JSON`, ""},
		{"completion bash --columns a", `--columns: "kshare completion" has no rows`, ""},
		{"version --time-zone Mars/Base", `invalid argument "Mars/Base" for "--time-zone" flag: no such time zone: want UTC, Local, or a name such as Europe/Paris`, ""},
		{"version --time-zone ../../etc/passwd", "no such time zone", ""},
	} {
		t.Run(c.args, func(t *testing.T) {
			var stdout, stderr strings.Builder
			d := Deps{
				In: unreadable{t}, Out: &stdout, ErrOut: &stderr,
				Getenv: func(string) string { return "" },
				Now:    time.Now,
			}
			args := append(strings.Fields(c.args), "-b", "nobody.invalid:9092")
			if code := Main(t.Context(), args, d); code != exitUsage || stdout.Len() > 0 {
				t.Fatalf("kshare %s ended with %d, stdout %q, want %d and nothing", c.args, code, stdout.String(), exitUsage)
			}
			text := stderr.String()
			if strings.HasPrefix(text, "{") {
				var line errorLine
				if err := json.Unmarshal([]byte(text), &line); err != nil || line.Kind != "error" {
					t.Fatalf("stderr %q is no error: %v", text, err)
				}
				text = line.Error
				if line.Hint != nil {
					text += "\n" + *line.Hint
				}
			}
			if !strings.Contains(text, c.err) || !strings.Contains(text, c.hint) {
				t.Errorf("stderr %q, want %q and %q", text, c.err, c.hint)
			}
		})
	}
}

// A wrong flag that stands before a filter is told as JSON too, since the filter
// asks for it; what "ctp" means by --jq does not.
func TestUsageErrorsOfFiltersAreJSON(t *testing.T) {
	for args, want := range map[string]bool{
		"version --nope --jq .":                               true,
		"version --nope --jq=.":                               true,
		"version --nope --output-jq .":                        true,
		"version --nope -- --jq .":                            false,
		"ctp --nope --from a --to b --jq .":                   false,
		"ctp --nope --from a --to b --jq . --output-jq .kind": true,
	} {
		var stderr strings.Builder
		d := Deps{In: strings.NewReader(""), Out: &strings.Builder{}, ErrOut: &stderr, Getenv: func(string) string { return "" }, Now: time.Now}
		code := Main(t.Context(), strings.Fields(args), d)
		if got := strings.HasPrefix(stderr.String(), `{"kind":"error"`); code != exitUsage || got != want {
			t.Errorf("kshare %s ended with %d, as JSON %v, want %v: %s", args, code, got, want, stderr.String())
		}
	}
}

func TestTimeZoneSetting(t *testing.T) {
	at := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name, flag, env, file string
		format                output.Format
		want                  string
	}{
		{"nothing is UTC", "", "", "", output.FormatTable, "2026-07-01T12:00:00Z"},
		{"a flag", "Europe/Paris", "Asia/Tokyo", "UTC", output.FormatTable, "2026-07-01T14:00:00+02:00"},
		{"the environment", "", "Asia/Tokyo", "UTC", output.FormatWide, "2026-07-01T21:00:00+09:00"},
		{"a context", "", "", "America/St_Johns", output.FormatTable, "2026-07-01T09:30:00-02:30"},
		{"whatever the case of UTC", "utc", "Asia/Tokyo", "", output.FormatTable, "2026-07-01T12:00:00Z"},
		{"JSON is UTC", "Europe/Paris", "", "", output.FormatJSON, "2026-07-01T12:00:00Z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := "contexts: [{name: p, bootstrap_server: 'a:1'}]"
			if c.file != "" {
				file = "contexts: [{name: p, bootstrap_server: 'a:1', time_zone: " + c.file + "}]"
			}
			d := connecting(t, map[string]string{"KSHARE_TIME_ZONE": c.env}, file)
			d.flags.TimeZone, d.flags.Output = c.flag, c.format
			if err := d.checkTimeZone(); err != nil {
				t.Fatal(err)
			}
			if _, err := d.settings(connection{Context: "p"}); err != nil {
				t.Fatal(err)
			}
			if got := d.time(at); got != c.want {
				t.Errorf("noon is %s, want %s", got, c.want)
			}
			table := output.NewTable("AT")
			table.Row(at)
			var b strings.Builder
			if err := output.Write(&b, output.View{Kind: "t", Items: []time.Time{at}, Table: table}, d.options(0)); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(b.String(), c.want) {
				t.Errorf("%s has no %s:\n%s", c.format, c.want, b.String())
			}
		})
	}
	// What connects to no broker shows times too.
	for _, c := range []struct{ name, file, env, want, warning string }{
		{"not connected", "current_context: p\ncontexts: [{name: p, time_zone: Asia/Tokyo, command_config: /nope}]", "", "2026-07-01T21:00:00+09:00", ""},
		{"not connected, the environment", "current_context: p\ncontexts: [{name: p, time_zone: Asia/Tokyo}]", "UTC", "2026-07-01T12:00:00Z", ""},
		{"not connected, no file", "", "", "2026-07-01T12:00:00Z", ""},
		{"not connected, a file with a mistake", "current_context: q", "", "2026-07-01T12:00:00Z", `warning: times are in UTC, since the settings are not known: `},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := connecting(t, map[string]string{"KSHARE_TIME_ZONE": c.env}, c.file)
			var stdout strings.Builder
			d.Out, d.Now = &stdout, time.Now
			if err := d.checkTimeZone(); err != nil {
				t.Fatal(err)
			}
			if err := d.show(sandboxFaultView([]sandbox.Fault{{Kind: sandbox.FaultStopSweeper, Since: at}}, nil), nil); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(stdout.String(), c.want) {
				t.Errorf("it shows no %s:\n%s", c.want, stdout.String())
			}
			if stderr := d.ErrOut.(*strings.Builder).String(); (stderr == "") != (c.warning == "") || !strings.Contains(stderr, c.warning) {
				t.Errorf("stderr %q, want %q", stderr, c.warning)
			}
		})
	}
	t.Run("unknown", func(t *testing.T) {
		d := connecting(t, map[string]string{"KSHARE_TIME_ZONE": "nowhere"}, "contexts: [{name: p, bootstrap_server: 'a:1'}]")
		if code, _ := classify(d.checkTimeZone()); code != exitUsage {
			t.Errorf("an unknown zone in the environment ends with %d, want %d", code, exitUsage)
		}
		d = connecting(t, nil, "contexts: [{name: p, bootstrap_server: 'a:1', time_zone: nowhere}]")
		_, err := d.settings(connection{Context: "p"})
		if code, _ := classify(err); code != exitUsage || !strings.Contains(err.Error(), "Europe/Paris") {
			t.Errorf("an unknown zone in a context: %v, exit code %d", err, code)
		}
	})
}

// showing returns dependencies that show to stdout and stderr.
func showing(args globalFlags) (d *Deps, stdout, stderr *strings.Builder) {
	stdout, stderr = &strings.Builder{}, &strings.Builder{}
	return &Deps{
		Out: stdout, ErrOut: stderr, Getenv: func(string) string { return "" },
		Now: func() time.Time { return time.Unix(0, 0) }, flags: &args,
	}, stdout, stderr
}

func showView() output.View {
	t := output.NewTable("GROUP", "LAG")
	t.Row("billing", 1)
	return output.View{Kind: "t", Version: 1, Items: []int{1}, Table: t, Text: "\nwhat it comes to\n"}
}

// Rows alone are on stdout; what else people are told, on stderr.
func TestShowRowsOnly(t *testing.T) {
	for _, c := range []struct {
		name           string
		flags          globalFlags
		stdout, stderr string
	}{
		{"as it is", globalFlags{}, "GROUP    LAG\nbilling  1\n\nwhat it comes to\n", ""},
		{"columns", globalFlags{resultFlags: resultFlags{Columns: []string{"lag"}}}, "LAG\n1\n", "kshare: what it comes to\n"},
		{"no headers", globalFlags{resultFlags: resultFlags{NoHeaders: true}}, "billing  1\n", "kshare: what it comes to\n"},
		{"quiet", globalFlags{Quiet: true, resultFlags: resultFlags{NoHeaders: true}}, "billing  1\n", ""},
		{"csv", globalFlags{Output: output.FormatCSV, resultFlags: resultFlags{NoHeaders: true}}, "billing,1\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, stdout, stderr := showing(c.flags)
			if err := d.show(showView(), nil); err != nil || stdout.String() != c.stdout || stderr.String() != c.stderr {
				t.Errorf("stdout %q, stderr %q, %v; want %q and %q", stdout, stderr, err, c.stdout, c.stderr)
			}
		})
	}
}

// A token that is not shown would leave a transaction that nobody can end.
func TestTokenIsNeverLost(t *testing.T) {
	filter, err := output.NewFilter(".items", false)
	if err != nil {
		t.Fatal(err)
	}
	full := failingOut{errors.New("no space left on device")}
	for _, c := range []struct {
		flags  globalFlags
		filter *output.Filter
		out    io.Writer // nil takes everything
		err    error     // of the command
	}{
		{},
		{flags: globalFlags{Output: output.FormatWide}},
		{flags: globalFlags{Output: output.FormatJSON}},
		{flags: globalFlags{Output: output.FormatCSV}},
		{flags: globalFlags{Quiet: true, Output: output.FormatCSV}},
		{flags: globalFlags{Quiet: true, resultFlags: resultFlags{NoHeaders: true}}},
		{flags: globalFlags{Quiet: true, resultFlags: resultFlags{Columns: []string{"topic"}}}},
		{flags: globalFlags{Quiet: true, Output: output.FormatJSON}, filter: filter},
		{out: full},
		{flags: globalFlags{Quiet: true, Output: output.FormatCSV}, out: full},
		{flags: globalFlags{Output: output.FormatJSON}, out: full, err: errors.New("write token.txt: no space left on device")},
	} {
		res := &ackResult{Items: []ackItem{}, Token: new("ktx1.abc")}
		d, stdout, stderr := showing(c.flags)
		d.filter = c.filter
		if c.out != nil {
			d.Out = c.out
		}
		err := d.showToken(ackView(res), res, c.err)
		if c.out == nil && err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(stdout.String()+stderr.String(), "ktx1.abc"); n != 1 {
			t.Errorf("%+v: stdout %q and stderr %q have the token %d times, want once", c, stdout, stderr, n)
		}
	}

	res := &ackResult{Items: []ackItem{}, Token: new("ktx1.abc"), tokenKept: true}
	d, _, stderr := showing(globalFlags{Output: output.FormatJSON})
	d.filter = filter
	if err := d.showToken(ackView(res), res, nil); err != nil || stderr.Len() > 0 {
		t.Errorf("stderr %q, %v; a token that is in a file is not to be told", stderr, err)
	}
}

// failingOut is a stdout that takes nothing.
type failingOut struct{ err error }

func (o failingOut) Write([]byte) (int, error) { return 0, o.err }

// A token file that could not be written is not left behind: it would be taken for
// one whose writer has died, and be in the way of the next.
func TestTokenFileThatFails(t *testing.T) {
	name := filepath.Join(t.TempDir(), "token.txt")
	f, err := createTokenFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.f.Close(); err != nil { // any write fails then
		t.Fatal(err)
	}
	res := &ackResult{TransactionalID: "billing-1", Token: new("ktx1.abc")}
	if err := f.finish(res, nil); err == nil || !strings.Contains(ownHint(err), "kshare txn fence billing-1") || res.tokenKept {
		t.Errorf("finish = %v, kept %v; want an error with a hint, and no token kept", err, res.tokenKept)
	}
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file: %v, want it gone", err)
	}
}

// The exit code of a command stays what it is; a filter that fails is a failure
// of its own where the command had none.
func TestFilterAndExitCodes(t *testing.T) {
	failed := &pendingCheckError{"1 record is in TX_PENDING"}
	for _, c := range []struct {
		name       string
		expression string
		incomplete bool
		err        error
		stdout     string
		code       int
	}{
		{"done", ".kind", false, nil, "\"t\"\n", exitDone},
		{"incomplete", ".kind, .incomplete", true, nil, "\"t\"\ntrue\n", exitPartial},
		{"the command failed", ".items[]", false, failed, "1\n", exitRefused},
		{"the filter failed", ".kind, .items.a", false, nil, "\"t\"\n", exitFailed},
		{"both failed", ".items.a", false, failed, "", exitRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, stdout, stderr := showing(globalFlags{Output: output.FormatJSON})
			var err error
			if d.filter, err = output.NewFilter(c.expression, false); err != nil {
				t.Fatal(err)
			}
			v := showView()
			v.Incomplete = c.incomplete
			code := d.report(d.show(v, c.err))
			if code != c.code || stdout.String() != c.stdout {
				t.Errorf("ended with %d, stdout %q; want %d and %q", code, stdout, c.code, c.stdout)
			}
			if told, want := strings.Contains(stderr.String(), "jq expression"), strings.HasSuffix(c.expression, ".a"); told != want {
				t.Errorf("stderr %q tells of the filter: %v, want %v", stderr, told, want)
			}
			for line := range strings.Lines(stderr.String()) {
				if !json.Valid([]byte(line)) {
					t.Errorf("line %q on stderr is no JSON", line)
				}
			}
		})
	}
}

// The examples of docs/output.md compile, and name columns that exist.
func TestExamplesOfOutput(t *testing.T) {
	page, err := os.ReadFile("../docs/output.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for line := range strings.Lines(string(page)) {
		example, ok := strings.CutPrefix(line, "$ kshare ")
		if !ok {
			continue
		}
		found++
		// A pipe of the shell, not one within quotes.
		if i := strings.LastIndex(example, "'"); strings.Contains(example[i+1:], " | ") {
			example = example[:i+1+strings.Index(example[i+1:], " | ")]
		}
		d := &Deps{Getenv: func(string) string { return "" }, flags: &globalFlags{}}
		root := newTree(d).root
		cmd, rest, err := root.Find(splitWords(example))
		if err != nil || cmd == root {
			t.Errorf("%q names no command: %v", example, err)
			continue
		}
		if err := cmd.ParseFlags(rest); err != nil {
			t.Errorf("%q: %v", example, err)
		}
		if err := d.checkResult(cmd); err != nil {
			t.Errorf("%q: %v", example, err)
		}
	}
	if found < 10 {
		t.Errorf("only %d examples were found", found)
	}
}
