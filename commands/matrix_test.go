package commands_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kshare/kshare/commands"
	"github.com/kshare/kshare/internal/cmdtest"
	"github.com/kshare/kshare/internal/fakekafka"
	"github.com/kshare/kshare/internal/schematest"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/txn"
	"github.com/spf13/pflag"
	"github.com/twmb/franz-go/pkg/kversion"
	"go.yaml.in/yaml/v3"
)

// The matrix is every command by every way to fail. What each cell must be, tells
// the row of wants; what holds in all of them, checkCell.

// codes are the exit codes of a class of failures, by whom a command talks to.
type codes struct {
	kafka, control, metrics, nobody int
	// except has those of single commands, and why they are other ones.
	except map[string]exception
}

type exception struct {
	code int
	why  string
}

func (c codes) want(call cmdtest.Call) int {
	if e, ok := c.except[call.Command]; ok {
		return e.code
	}
	switch call.Peer {
	case cmdtest.Kafka:
		return c.kafka
	case cmdtest.Control:
		return c.control
	case cmdtest.Metrics:
		return c.metrics
	case cmdtest.Nobody:
	}
	return c.nobody
}

// matrix runs all commands that apply in one class. each says how; false is a cell
// that another class has.
func matrix(t *testing.T, want codes, each func(cmdtest.Call) (cell, bool)) {
	t.Helper()
	for _, call := range cmdtest.AllCalls(t) {
		if c, ok := each(call); ok {
			c.call = call
			checkCell(t, c, c.run(t), want.want(call))
		}
	}
}

var matrixSchemas = sync.OnceValues(func() (schematest.Schemas, error) { return schematest.Load("../docs/json") })

// textOutput are commands whose stdout is a text, whatever the format: it is what
// they are for.
var textOutput = []string{"completion", "help"}

// checkCell checks what holds in every cell, of a command with -o json.
func checkCell(t *testing.T, c cell, res cmdtest.Result, want int) {
	t.Helper()
	name := "kshare " + strings.Join(res.Args, " ")
	if res.Code != want {
		t.Errorf("%s: exit code %d, want %d\n%s%s", name, res.Code, want, res.Stdout, res.Stderr)
		return
	}
	checkDocumented(t, c.call.Command, res.Code)
	if strings.Contains(res.Stdout+res.Stderr, "\x1b") {
		t.Errorf("%s: an ESC without a terminal:\n%s%s", name, res.Stdout, res.Stderr)
	}
	if !slices.Contains(textOutput, c.call.Command) && res.Stdout != "" {
		checkJSON(t, name, res.Stdout)
	}
	checkStderr(t, name, res)
}

// checkDocumented fails unless the table of exit codes has one, and the command's
// help as well.
func checkDocumented(t *testing.T, command string, code int) {
	t.Helper()
	known := slices.ContainsFunc(commands.ExitCodes(), func(e commands.ExitCode) bool { return e.Code == code })
	if !known {
		t.Errorf("exit code %d is not in the table", code)
	}
	cmd, _, err := commands.Root().Find(strings.Fields(command))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(commands.ExitStatus(cmd)) {
		if strings.Fields(line)[0] == strconv.Itoa(code) {
			return
		}
	}
	t.Errorf("kshare %s ended with %d, which its help does not have", command, code)
}

// checkJSON fails unless stdout is one document that its schema takes.
func checkJSON(t *testing.T, name, stdout string) {
	t.Helper()
	schemas, err := matrixSchemas()
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(stdout))
	var doc json.RawMessage
	if err := dec.Decode(&doc); err != nil {
		t.Errorf("%s: stdout is no document: %v\n%s", name, err, stdout)
		return
	}
	if _, err := schemas.Check(doc); err != nil {
		t.Errorf("%s: %v\n%s", name, err, stdout)
	}
	if dec.More() {
		t.Errorf("%s: stdout has more than one document:\n%s", name, stdout)
	}
}

// checkStderr fails unless stderr is lines of JSON that their schemas take, and
// there is one error, with the exit code, exactly where it failed.
func checkStderr(t *testing.T, name string, res cmdtest.Result) {
	t.Helper()
	schemas, err := matrixSchemas()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(res.Stderr) {
		if _, err := schemas.Check([]byte(line)); err != nil {
			t.Errorf("%s: line %q on stderr: %v", name, line, err)
		}
	}
	silent := []int{0, 10, 141}
	if slices.Contains(silent, res.Code) {
		if strings.Contains(res.Stderr, `"kind":"error"`) {
			t.Errorf("%s: exit code %d with an error:\n%s", name, res.Code, res.Stderr)
		}
		return
	}
	if line := res.ErrorLine(t); line["exit_code"] != float64(res.Code) {
		t.Errorf("%s: exit code %d, and the error says %v", name, res.Code, line)
	}
}

var inJSON = []string{"-o", "json"}[:2:2]

// elsewhere is a place with a peer that no command will get as far as to ask for
// anything in.
func elsewhere(peer string) cmdtest.Place {
	token := txn.Token{TransactionalID: "t", ProducerID: 1, ProducerEpoch: 1, Created: cmdtest.Now()}
	return cmdtest.Place{Peer: peer, Token: token.String(), ID: "t", Offset: "0", File: "matrix_test.go"}
}

// Each command works, in every format, and reads no stdin for it. Otherwise that it
// fails proves nothing.
func TestMatrixWorks(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "yaml", "csv", "wide", "table"} {
		s := newStage(t) // each time that records are acquired they lose a delivery
		matrix(t, codes{}, func(call cmdtest.Call) (cell, bool) {
			if call.Command == "demo" && format != "json" {
				return cell{}, false // it has one result, and takes its time
			}
			c := cell{call: call, place: s.place(call), args: []string{"-o", format}}
			if format != "json" {
				res := c.run(t).Want(t, 0)
				checkFormat(t, call.Command, format, res)
				if format == "yaml" && call.Peer == cmdtest.Kafka {
					checkNamesCluster(t, s, res)
				}
			}
			return c, format == "json"
		})
	}
}

// checkNamesCluster fails unless a result says which cluster it came from.
func checkNamesCluster(t *testing.T, s *stage, res cmdtest.Result) {
	t.Helper()
	if want := "\ncluster_id: " + s.sandbox.ClusterID() + "\n"; !strings.Contains(res.Stdout, want) {
		t.Errorf("kshare %s: it does not have %q:\n%s", strings.Join(res.Args, " "), want, res.Stdout)
	}
}

// checkFormat checks what is on stdout in a format other than JSON.
func checkFormat(t *testing.T, command, format string, res cmdtest.Result) {
	t.Helper()
	name := "kshare " + strings.Join(res.Args, " ")
	if slices.Contains(textOutput, command) {
		return
	}
	if strings.Contains(res.Stdout+res.Stderr, "\x1b") {
		t.Errorf("%s: an ESC without a terminal:\n%s%s", name, res.Stdout, res.Stderr)
	}
	switch format {
	case "yaml":
		checkYAML(t, name, res.Stdout)
	case "csv":
		rows, err := csv.NewReader(strings.NewReader(res.Stdout)).ReadAll()
		if err != nil || len(rows) == 0 {
			t.Errorf("%s: %d rows of CSV, %v\n%s", name, len(rows), err, res.Stdout)
		}
	}
}

// checkYAML fails unless stdout is one document that, as JSON, its schema takes.
func checkYAML(t *testing.T, name, stdout string) {
	t.Helper()
	dec := yaml.NewDecoder(strings.NewReader(stdout))
	var doc map[string]any
	if err := dec.Decode(&doc); err != nil {
		t.Errorf("%s: stdout is no YAML: %v\n%s", name, err, stdout)
		return
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		t.Errorf("%s: stdout has more than one document (%v):\n%s", name, err, stdout)
	}
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	checkJSON(t, name, string(b))
}

// What has nobody to talk to is not moved by what is wrong with the connection.
// These are the cells of such commands in the classes about connections.
func TestMatrixNobodyIsDialled(t *testing.T) {
	t.Parallel()
	addr := silent(t, func() { t.Error("somebody was dialled") })
	env := map[string]string{
		"KSHARE_BOOTSTRAP_SERVER": addr, "KSHARE_TLS": "true", "KSHARE_SANDBOX_CONTROL": addr,
		"KSHARE_SASL_MECHANISM": "PLAIN", "KSHARE_SASL_USER": "u", "KSHARE_SASL_PASSWORD": "wrong",
	}
	matrix(t, codes{}, func(call cmdtest.Call) (cell, bool) {
		return cell{place: elsewhere(addr), env: env, args: inJSON}, call.Peer == cmdtest.Nobody
	})
}

func TestMatrixDeadAddress(t *testing.T) {
	t.Parallel()
	matrix(t, codes{kafka: 7, control: 7, metrics: 7}, func(call cmdtest.Call) (cell, bool) {
		return cell{place: elsewhere("127.0.0.1:1"), args: inJSON}, call.Peer != cmdtest.Nobody
	})
}

// The control address of a sandbox has no login.
func TestMatrixWrongPassword(t *testing.T) {
	t.Parallel()
	peer := startSandbox(t, sandbox.WithUsers(sandbox.User{Name: "u", Password: "right"}))
	login := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "who are you?", http.StatusUnauthorized)
	}))
	defer login.Close()
	env := map[string]string{"KSHARE_SASL_MECHANISM": "PLAIN", "KSHARE_SASL_USER": "u", "KSHARE_SASL_PASSWORD": "wrong"}
	matrix(t, codes{kafka: 4, metrics: 4}, func(call cmdtest.Call) (cell, bool) {
		if call.Peer == cmdtest.Metrics {
			return cell{place: elsewhere("http://u:wrong@" + login.Listener.Addr().String()), args: inJSON}, true
		}
		return cell{place: elsewhere(peer), env: env, args: inJSON}, call.Peer == cmdtest.Kafka
	})
}

// The control address of a sandbox has no TLS. An HTTP client that meets no TLS has
// no reason to think that it is about who it is, so that is 1.
func TestMatrixTLSToPlaintext(t *testing.T) {
	t.Parallel()
	peer := startSandbox(t)
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	matrix(t, codes{kafka: 4, metrics: 1}, func(call cmdtest.Call) (cell, bool) {
		if call.Peer == cmdtest.Metrics {
			return cell{place: elsewhere("https://" + plain.Listener.Addr().String()), args: inJSON}, true
		}
		return cell{place: elsewhere(peer), env: map[string]string{"KSHARE_TLS": "true"}, args: inJSON}, call.Peer == cmdtest.Kafka
	})
}

// Over HTTP a server with TLS says what is wrong, in plaintext: 400.
func TestMatrixPlaintextToTLS(t *testing.T) {
	t.Parallel()
	peer := startSandbox(t, sandbox.WithTLS(selfSigned(t)))
	web := httptest.NewTLSServer(http.NotFoundHandler())
	defer web.Close()
	matrix(t, codes{kafka: 4, control: 1, metrics: 1}, func(call cmdtest.Call) (cell, bool) {
		if call.Peer != cmdtest.Kafka {
			peer := web.Listener.Addr().String()
			return cell{place: elsewhere(peer), args: inJSON}, call.Peer != cmdtest.Nobody
		}
		return cell{place: elsewhere(peer), args: inJSON}, true
	})
}

// What names something, by a flag or an argument, and what it ends with where there
// is nothing of that name.
func unknownNames() map[string]exception {
	return map[string]exception{
		"ack --group nobody --accept in:0:0 --yes":         {1, ""},
		"ack --group g --accept nothing:0:0 --yes":         {1, ""},
		"ack --group g --accept in:7:0 --yes":              {1, ""},
		"ctp --from nothing --to out":                      {1, ""},
		"ctp --from in --to nothing":                       {1, ""},
		"ctp --from in --to out --group new --until-empty": {0, "a share group exists from its first member on"},
		"doctor --group nobody":                            {3, "what may be done with it is not told, and all else is"},
		"doctor --topic nothing":                           {3, "what may be done with it is not told, and all else is"},
		"doctor --transactional-id nobody":                 {0, "an ID exists from its first producer on; what may be done with it is known"},
		"drain --group nobody":                             {1, ""},
		"drain --topic nothing":                            {1, ""},
		"drain --fence nobody --yes --accept-memory --interval 100ms --quiet-period 100ms": {0, "nobody has a transaction open: it is so already, and a warning says it"},
		"inspect group nobody":                                           {1, ""},
		"inspect partition nobody in 0":                                  {1, ""},
		"inspect partition g nothing 0":                                  {1, ""},
		"inspect partition g in 7":                                       {1, ""},
		"inspect pending --group nobody":                                 {1, ""},
		"inspect pending --topic nothing":                                {1, ""},
		"inspect pending --txn nobody":                                   {0, "coordinators forget IDs, and one that is forgotten owns nothing"},
		"inspect txn nobody":                                             {1, ""},
		"txn abort --topic nothing --partition 0 --start-offset 0 --yes": {1, ""},
		"txn abort --topic in --partition 0 --producer-id 7 --producer-epoch 0 --yes": {1, ""},
		"txn describe nobody":              {1, ""},
		"txn fence nobody --yes":           {1, ""},
		"txn find-hanging --topic nothing": {1, ""},
		"txn prepare --transactional-id p --group nobody --accept in:0:0 --yes":   {1, ""},
		"txn prepare --transactional-id p --group g --accept nothing:0:0 --yes":   {1, ""},
		"txn prepare --transactional-id p --produce nothing=matrix_test.go --yes": {1, ""},
		"txn abort {token} --yes":                 {9, "how the transaction ended cannot be told"},
		"txn commit {token} --yes":                {9, "how the transaction ended cannot be told"},
		"txn describe {token}":                    {9, "how the transaction ended cannot be told"},
		"txn resume {token} --commit --yes":       {9, "how the transaction ended cannot be told"},
		"feature plan share.versoin=1":            {0, "the plan begins with software that knows it"},
		"feature upgrade share.versoin=1 --yes":   {5, "no broker knows the feature"},
		"feature downgrade share.versoin=0 --yes": {5, "no broker knows the feature"},
		"feature dependencies share.versoin=1":    {64, "kshare has a table of features, and this is in none of its rows"},
		"feature mapping --release 9.9":           {64, "kshare has a table of releases, and this is none of its rows"},
	}
}

func TestMatrixUnknownNames(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	named := make(map[string]bool)
	for line, want := range unknownNames() {
		args := strings.Fields(strings.ReplaceAll(line, "{token}", elsewhere("").Token))
		cmd, rest, err := commands.Root().Find(args)
		if err != nil {
			t.Fatal(err)
		}
		command := strings.TrimPrefix(cmd.CommandPath(), "kshare ")
		named[command] = true
		for _, a := range rest {
			named[command+" "+a] = true
		}
		c := cell{call: cmdtest.Call{Command: command, Line: strings.Join(rest, " ")}, args: []string{"-o", "json"}}
		if cmd.Flag("context") != nil {
			c.args = append(c.args, "-b", s.sandbox.BootstrapServers())
		}
		checkCell(t, c, c.run(t), want.code)
	}
	// Whatever takes a name is in there.
	for _, call := range cmdtest.AllCalls(t) {
		cmd, _, err := commands.Root().Find(strings.Fields(call.Command))
		if err != nil || call.Peer != cmdtest.Kafka {
			continue
		}
		for _, flag := range []string{"group", "topic", "transactional-id", "txn", "fence"} {
			takes := cmd.Flag(flag) != nil && !strings.Contains(cmd.Flag(flag).Usage, "--sandbox")
			// With these flags a new ID is made, or a group.
			makes := slices.Contains([]string{"ack --transactional-id", "txn prepare --transactional-id", "ctp --transactional-id"}, call.Command+" --"+flag)
			if takes && !makes && !named[call.Command+" --"+flag] {
				t.Errorf("kshare %s --%s of nothing that exists is not tested", call.Command, flag)
			}
		}
		if strings.Contains(cmd.Use, "<") && !named[call.Command] {
			t.Errorf("kshare %s: a name of nothing that exists is not tested", cmd.Use)
		}
	}
}

// One broker of three is down, and metadata still has it: brokers learn of it
// after seconds. It leads in-0, and coordinates the transactions that are asked
// about.
func TestMatrixOneBrokerDown(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	doomed := s.doom()
	var tokens []string
	for len(tokens) < len(cmdtest.Calls()) {
		p := s.place(cmdtest.Call{})
		token := s.prepare(p)
		if s.coordinator(p.ID) == doomed {
			tokens = append(tokens, token)
		}
	}
	s.takeDown(doomed)
	incomplete := exception{3, "the rest is shown"}
	refused := exception{6, "nothing is changed while something is unknown"}
	unseen := exception{6, "it is not known what is pending"}
	want := codes{kafka: 7, except: map[string]exception{
		"doctor": incomplete, "feature describe": incomplete, "feature matrix": incomplete, "feature plan": incomplete,
		"inspect group": incomplete, "inspect partition": incomplete, "inspect pending": incomplete, "inspect txn": incomplete,
		"txn find-hanging": incomplete,
		"drain":            unseen,
		"feature upgrade":  refused, "feature downgrade": refused,
	}}
	var wg sync.WaitGroup
	matrix(t, want, func(call cmdtest.Call) (cell, bool) {
		if call.Peer != cmdtest.Kafka {
			return cell{}, false
		}
		p := elsewhere(s.sandbox.BootstrapServers())
		p.Token, tokens = tokens[0], tokens[1:]
		c := cell{call: call, place: p, args: []string{"-o", "json", "--timeout", "3s"}}
		switch e := want.except[call.Command]; e {
		case incomplete, unseen: // it is done before the time is up, whatever it has waited for
			c.args = []string{"-o", "json", "--timeout", "10s"}
		case refused: // so is it, and the broker is waited for after all else
			c.args = []string{"-o", "json", "--timeout", "2m"}
		}
		wg.Go(func() {
			res := c.run(t)
			checkCell(t, c, res, want.want(call))
			if e := want.except[call.Command]; (e == incomplete || e == unseen) && res.Stdout == "" {
				t.Errorf("kshare %s: the rest is not shown\n%s", call.Command, res.Stderr)
			}
		})
		return c, false
	})
	wg.Wait()
}

// A broker says nothing, and --timeout passes.
func TestMatrixTimeout(t *testing.T) {
	t.Parallel()
	addr := silent(t, func() {})
	running := exception{7, "it goes on until it is stopped"}
	want := codes{kafka: 7, control: 7, metrics: 7, except: map[string]exception{"sandbox run": running, "demo": {7, "it works on a sandbox of its own"}}}
	var wg sync.WaitGroup
	matrix(t, want, func(call cmdtest.Call) (cell, bool) {
		c := cell{call: call, place: elsewhere(addr), args: []string{"-o", "json", "--timeout", "100ms"}, untilStopped: true}
		wg.Go(func() { checkCell(t, c, c.run(t), want.want(call)) })
		return c, false
	})
	wg.Wait()
}

// A signal comes while a broker says nothing. There is no deadline: who waits for
// one never ends. What talks to nobody is done before it looks for signals, but for
// what runs a sandbox: it gets the signal while that starts.
func TestMatrixSignals(t *testing.T) {
	t.Parallel()
	for sig, code := range map[os.Signal]int{os.Interrupt: 130, syscall.SIGTERM: 143} {
		sandboxes := exception{code, "it is not ready yet"}
		want := codes{kafka: code, control: code, metrics: code, except: map[string]exception{"demo": sandboxes, "sandbox run": sandboxes}}
		matrix(t, want, func(call cmdtest.Call) (cell, bool) {
			s := newSignal()
			addr := silent(t, func() { s.send(sig) })
			if call.Peer == cmdtest.Nobody {
				s.send(sig)
			}
			return cell{place: elsewhere(addr), args: inJSON, change: func(d *commands.Deps) { d.Notify = s.notify }}, true
		})
	}
}

// textFlags are the flags of a command, without the global ones, whose values are
// texts.
func textFlags(t *testing.T, command string) (names []string) {
	t.Helper()
	cmd, _, err := commands.Root().Find(strings.Fields(command))
	if err != nil {
		t.Fatal(err)
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if slices.Contains([]string{"string", "stringSlice", "stringArray"}, f.Value.Type()) {
			names = append(names, f.Name)
		}
	})
	return names
}

// Wrong usage is found before anything is done.
func TestMatrixUsage(t *testing.T) {
	t.Parallel()
	addr := silent(t, func() { t.Error("somebody was dialled") })
	all := codes{kafka: 64, control: 64, metrics: 64, nobody: 64}
	for _, wrong := range []string{"--no-such-flag", "--timeout=soon", "--timeout=-1s", "--color=blue"} {
		matrix(t, all, func(cmdtest.Call) (cell, bool) {
			return cell{place: elsewhere(addr), args: []string{"-o", "json", wrong}}, true
		})
	}
	for _, call := range cmdtest.AllCalls(t) {
		c := cell{call: call, place: elsewhere(addr), args: []string{"-o", "xml"}}
		if res := c.run(t).Want(t, 64); res.Stdout != "" || !strings.Contains(res.Stderr, "want one of table, wide, json, yaml, csv") {
			t.Errorf("kshare %s -o xml: stdout %q, stderr %q", call.Command, res.Stdout, res.Stderr)
		}
	}
	for _, call := range cmdtest.AllCalls(t) {
		for _, flag := range textFlags(t, call.Command) {
			c := cell{call: call, place: elsewhere(addr), args: []string{"--" + flag + "="}}
			if res := c.run(t).Want(t, 64); !strings.Contains(res.Stderr, "error: --"+flag+": the value is empty\n") {
				t.Errorf("kshare %s --%s=: stderr %q", call.Command, flag, res.Stderr)
			}
		}
	}
	_, parents := cmdtest.Commands()
	for _, parent := range parents {
		res := cmdtest.Run(t, cmdtest.Setup{}, strings.Fields(parent)...).Want(t, 64)
		if res.Stdout != "" || !strings.Contains(res.Stderr, "\nCommands:\n") || !strings.Contains(res.Stderr, "needs a command") {
			t.Errorf("kshare %s: stdout %q, stderr %q, want its help and the reason on stderr", parent, res.Stdout, res.Stderr)
		}
	}
	leaves, _ := cmdtest.Commands()
	for _, leaf := range leaves {
		if leaf == "help" {
			continue // cobra suggests what its help lists, and that is not in there
		}
		words := strings.Fields(leaf)
		last := words[len(words)-1]
		words[len(words)-1] = last[:len(last)-1] + "xx"
		res := cmdtest.Run(t, cmdtest.Setup{}, words...).Want(t, 64)
		if want := fmt.Sprintf("did you mean 'kshare %s'?", leaf); res.Stdout != "" || !strings.Contains(res.Stderr, want) {
			t.Errorf("kshare %s: stdout %q, stderr %q, want %q", strings.Join(words, " "), res.Stdout, res.Stderr, want)
		}
	}
}

// The reader of stdout has gone. What was done is done, and nothing is said of it,
// but for a token that is nowhere else.
func TestMatrixClosedStdout(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	gone := codes{kafka: 141, control: 141, metrics: 141, nobody: 141}
	closed := func(d *commands.Deps) {
		d.Out = failingWriter{&os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE}}
	}
	matrix(t, gone, func(call cmdtest.Call) (cell, bool) {
		return cell{place: s.place(call), args: inJSON, change: closed}, true
	})
	for _, line := range []string{
		"txn prepare --transactional-id lost --produce out=" + s.file + " --yes",
		"ack --group g --accept in:0:10 --prepare --yes",
	} {
		res := cmdtest.Run(t, cmdtest.Setup{Change: func(d *commands.Deps) { realTime(d); closed(d) }}, append(strings.Fields(line), "-b", s.sandbox.BootstrapServers())...).Want(t, 141)
		_, token, _ := strings.Cut(res.Stderr, "not in what was written to stdout: ")
		if _, err := txn.ParseToken(token); err != nil {
			t.Errorf("kshare %s: stderr %q, want the token: %v", line, res.Stderr, err)
		}
	}
}

// Neither a terminal nor --yes: what would change the cluster ends with 64, stdin
// is not read, and the cluster is not changed.
func TestMatrixNoConsent(t *testing.T) {
	t.Parallel()
	for _, level := range []int16{1, 2} { // an upgrade has something to ask about at 1, a downgrade at 2
		s := newStage(t, sandbox.WithShareVersion(level))
		for _, call := range cmdtest.AllCalls(t) {
			if !call.Asks || level == 1 && call.Command != "feature upgrade" || level == 2 && call.Command == "feature upgrade" {
				continue
			}
			c := cell{call: call.Without("--yes"), place: s.place(call), args: inJSON}
			s.tap.Reset()
			res := c.run(t)
			checkCell(t, c, res, 64)
			s.tap.ReadOnly(t)
			line := res.ErrorLine(t)
			if hint, _ := line["hint"].(string); !strings.Contains(hint, "--yes") {
				t.Errorf("kshare %s: error %v, want a hint that names --yes", call.Command, line)
			}
		}
	}
}

// A Kafka from before transactions could be described.
func TestMatrixOldKafka(t *testing.T) {
	t.Parallel()
	k := fakekafka.Start(t, fakekafka.Config{Topics: []string{"in", "out"}, Versions: kversion.V2_8_0()})
	incomplete := exception{3, "what this Kafka tells is shown"}
	want := codes{kafka: 5, except: map[string]exception{
		"doctor": incomplete, "feature describe": incomplete, "feature matrix": incomplete,
		"inspect pending": incomplete, "inspect txn": incomplete,
		"drain":             {6, "it will never be known what is pending"},
		"feature downgrade": {6, "the levels are not known, so nothing is changed"},
		"inspect group":     {1, "there are no share groups, so there is no such one"},
		"inspect partition": {1, "there are no share groups, so there is no such one"},
		"txn find-hanging":  {0, "no partition has an open transaction, which this Kafka does tell"},
	}}
	matrix(t, want, func(call cmdtest.Call) (cell, bool) {
		c := cell{place: elsewhere(k.BootstrapServers()), args: inJSON}
		if call.Command == "drain" { // which would go on until its own deadline
			c.args = append(c.args, "--timeout", "4s")
		}
		return c, call.Peer == cmdtest.Kafka
	})
}

// Nothing to list is a document with an empty list, and no rows of CSV.
func TestMatrixZeroRows(t *testing.T) {
	t.Parallel()
	peer := startSandbox(t)
	for _, line := range []string{"inspect group", "inspect pending", "inspect txn", "txn find-hanging", "drain --interval 100ms --quiet-period 100ms", "config get-contexts"} {
		run := func(format string) cmdtest.Result {
			args := append(strings.Fields(line), "-o", format, "-b", peer)
			return cmdtest.Run(t, cmdtest.Setup{Change: realTime}, args...).Want(t, 0)
		}
		res := run("json")
		checkJSON(t, line, res.Stdout)
		if !strings.Contains(res.Stdout, `"items": []`) {
			t.Errorf("kshare %s: want no items:\n%s", line, res.Stdout)
		}
		checkYAML(t, line, run("yaml").Stdout)
		if csv := run("csv").Stdout; strings.Count(csv, "\n") != 1 {
			t.Errorf("kshare %s -o csv: want headings alone:\n%s", line, csv)
		}
		if res := run("table"); strings.Contains(res.Stdout, "null") {
			t.Errorf("kshare %s: %q", line, res.Stdout)
		}
	}
}

// Half a result is a document too, in YAML as in JSON, and stderr says what failed.
func TestMatrixDocumentsAfterErrors(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for line, code := range map[string]int{
		"doctor --topic nothing": 3,
		"inspect group g nobody": 1,
		"inspect txn id nobody":  1,
		"drain --fence nobody --yes --accept-memory --interval 100ms --quiet-period 100ms": 0, // with a warning
		"txn abort " + s.prepare(s.place(cmdtest.Call{})) + " --dry-run":                   0,
		"txn fence id nobody --yes": 1,
	} {
		for _, format := range []string{"json", "yaml", "csv"} {
			args := append(strings.Fields(line), "-o", format, "-b", s.sandbox.BootstrapServers())
			res := cmdtest.Run(t, cmdtest.Setup{Change: realTime}, args...).Want(t, code)
			switch format {
			case "json":
				if res.Stdout != "" {
					checkJSON(t, line, res.Stdout)
				}
				checkStderr(t, line, res)
			case "yaml":
				if res.Stdout != "" {
					checkYAML(t, line, res.Stdout)
				}
			case "csv":
				if _, err := csv.NewReader(strings.NewReader(res.Stdout)).ReadAll(); err != nil {
					t.Errorf("%s: %v\n%s", line, err, res.Stdout)
				}
			}
		}
	}
}

// A stream is a document a line.
func TestMatrixStream(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, format := range []string{"json", "yaml"} {
		sig, looks := newSignal(), 0
		var out bytes.Buffer
		res := cmdtest.Run(t, cmdtest.Setup{Change: func(d *commands.Deps) {
			d.Now, d.Notify = time.Now, sig.notify
			d.Out = &ready{&out, func() {
				if looks++; looks == 3 {
					sig.send(os.Interrupt)
				}
			}}
		}}, "inspect", "pending", "--watch", "--interval", "100ms", "-o", format, "-b", s.sandbox.BootstrapServers()).Want(t, 130)
		docs := 0
		if format == "json" {
			for line := range strings.Lines(out.String()) {
				checkJSON(t, "inspect pending --watch", line)
				docs++
			}
			checkStderr(t, "inspect pending --watch", res)
		} else {
			for dec := yaml.NewDecoder(&out); ; docs++ {
				var doc map[string]any
				if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
		}
		if docs < 3 {
			t.Errorf("-o %s: %d documents, want 3 at least", format, docs)
		}
	}
}

// Colour is for terminals, and for who asks for it. That there is none in a pipe is
// checked in every cell.
func TestMatrixColour(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	// A sentence has nothing to colour, and neither has a table without rows.
	plain := []string{"config delete-context", "config set-context", "config use-context", "inspect pending", "inspect txn", "sandbox fault clear", "sandbox fault list", "txn find-hanging"}
	left := append([]string{"ctp", "demo", "sandbox run"}, textOutput...)
	for _, c := range []struct {
		name string
		tty  bool
		env  map[string]string
		args []string
		want bool
	}{
		{"terminal", true, nil, nil, true},
		{"NO_COLOR", true, map[string]string{"NO_COLOR": "1"}, nil, false},
		{"dumb terminal", true, map[string]string{"TERM": "dumb"}, nil, false},
		{"--no-color", true, nil, []string{"--no-color"}, false},
		{"--color=always", false, map[string]string{"NO_COLOR": "1", "TERM": "dumb"}, []string{"--color=always"}, true},
		{"JSON", true, nil, []string{"--color=always", "-o", "json"}, false},
	} {
		check := func(call cmdtest.Call, text string) {
			t.Helper()
			if got := strings.Contains(text, "\x1b"); got != c.want {
				t.Errorf("%s: kshare %s: coloured %v, want %v: %q", c.name, call.Command, got, c.want, text)
			}
		}
		for _, call := range cmdtest.AllCalls(t) {
			run := cell{call: call, place: elsewhere("127.0.0.1:1"), tty: c.tty, env: c.env, args: c.args}
			switch {
			case call.Peer == cmdtest.Kafka && call.Asks:
				check(call, run.run(t).Want(t, 7).Stderr)
			case !slices.Contains(left, call.Command) && !slices.Contains(plain, call.Command):
				run.place = s.place(call)
				check(call, run.run(t).Want(t, 0).Stdout)
			}
		}
	}
}
