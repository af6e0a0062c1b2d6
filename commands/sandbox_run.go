package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/wire"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
)

// SandboxConfig says which sandbox to start.
type SandboxConfig struct {
	Brokers    int
	Port       int // of the first broker, the others follow; 0 is any free port
	AnyAddress bool
	// AdvertisedHost is the host that clients are told with AnyAddress; "" is
	// the name of this machine.
	AdvertisedHost string
	Profile        string // a dialect, see [wire.Dialects]
	ShareVersion   int    // finalized level of share.version; -1 is the level of the profile
	PendingState   string // "persisted" or "memory"
	DataDir        string // "" keeps everything in memory
	Control        string // address of the control endpoint, "" for none
	Topics         []SandboxTopic
	BrokerConfigs  map[string]string
	// Warning is told what somebody has to do something about while the sandbox
	// runs; nil for nobody.
	Warning func(text string)
}

// SandboxTopic is a topic to create.
type SandboxTopic struct {
	Name       string
	Partitions int
}

// Sandbox is a running sandbox.
type Sandbox interface {
	BootstrapServers() string // host:port of every broker, joined by commas
	ClusterID() string
	ShareVersion() int16    // finalized level of share.version
	ControlAddress() string // "" without control endpoint
	// Load appends one record for each line of r, which has that name in errors.
	Load(ctx context.Context, topic, name string, r io.Reader) (records int64, err error)
	Close() error
}

func newSandboxCmd(d *Deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sandbox",
		Short: "Rehearse on a Kafka inside this process",
		Long: `Rehearse on a Kafka inside this process, which has share groups and their
transactions as KIP-1289 has them. It is made for rehearsals, demonstrations and
tests. It is no Kafka to keep data in.`,
		Example: `  kshare sandbox run --topic orders:3`,
	}
	cmd.AddCommand(newSandboxRunCmd(d, runSandboxRun), newSandboxFaultCmd(d))
	return cmd
}

// sandboxRunOptions is everything "sandbox run" can be told.
type sandboxRunOptions struct {
	SandboxConfig
	Loads []sandboxLoad
}

// sandboxLoad is a file to load into a topic; "-" is stdin.
type sandboxLoad struct{ Topic, File string }

// runningSandbox is a sandbox that is ready, with what was loaded into it.
type runningSandbox struct {
	Sandbox
	info sandboxInfo
}

// sandboxInfo is what "sandbox run" tells a script once it is ready.
type sandboxInfo struct {
	BootstrapServers string          `json:"bootstrap_servers"`
	ClusterID        string          `json:"cluster_id"`
	Profile          string          `json:"profile"`
	ShareVersion     int16           `json:"share_version"`
	PendingState     string          `json:"pending_state"`
	DataDir          *string         `json:"data_dir"` // null: in memory
	Control          *string         `json:"control"`  // null: no control endpoint
	Loaded           []sandboxLoaded `json:"loaded"`
}

// sandboxLoaded counts what was loaded from one file.
type sandboxLoaded struct {
	Topic   string `json:"topic"`
	File    string `json:"file"`
	Records int64  `json:"records"`
}

func newSandboxRunCmd(d *Deps, run runFunc[sandboxRunOptions, *runningSandbox]) *cobra.Command {
	var opts sandboxRunOptions
	var topics, loads, configs []string
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run a sandbox until it is told to stop",
		Long: `Run a sandbox in the foreground until SIGINT or SIGTERM, which are its normal
end: once it is ready it then ends with 0.

When it is ready and everything is loaded it prints where it is: the bootstrap
servers alone on a line, or one document with -o json or yaml. It listens on the
loopback address only, unless --any-address is given; it has no authentication.

--load takes one record a line; the value is the line without its line end, of
whatever kind but NUL bytes; empty lines are left out. Topics that --topic does
not name are created with 6 partitions.

With --data-dir a sandbox goes on where the last one there ended, and keeps its
level of share.version. That holds if it was killed, too: records and
acknowledgements of a transaction share one outcome. A transaction that was open
then and had records can only be aborted (TRANSACTION_ABORTABLE).`,
		Example: `  kshare sandbox run --topic orders:3 --topic shipped
  kshare sandbox run --load orders=examples/orders.ndjson -o json
  tail -n 100 app.log | kshare sandbox run --load log=-
  kshare sandbox run --brokers 3 --port 9092 --profile draft --data-dir ./sandbox-data
  kshare sandbox run --broker-config group.share.record.lock.duration.ms=15000`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if opts.Topics, opts.Loads, err = parseSandboxTopics(topics, loads); err != nil {
				return err
			}
			if opts.BrokerConfigs, err = parseBrokerConfigs(configs); err != nil {
				return err
			}
			if err := checkSandboxConfig(&opts.SandboxConfig); err != nil {
				return err
			}
			sb, err := run(cmd.Context(), d, opts)
			if err != nil {
				return err
			}
			return serveSandbox(cmd.Context(), d, sb)
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&opts.Brokers, "brokers", defaultSandboxBrokers, "`number` of brokers")
	fs.IntVar(&opts.Port, "port", 0, "`port` of the first broker, the others follow (default any free port)")
	addRepeated(fs, &topics, "topic", "create a topic, `name[:partitions]`; may be repeated")
	addRepeated(fs, &loads, "load", "load `topic=file`, one record a line, - for stdin; may be repeated")
	addRepeated(fs, &configs, "broker-config", "set a broker config, `name=value`; may be repeated")
	fs.StringVar(&opts.Profile, "profile", "kip", "`dialect` of KIP-1289: "+dialectChoice())
	fs.IntVar(&opts.ShareVersion, "share-version", -1, "finalized `level` of share.version (default that of the profile)")
	hideDefaults(fs, "share-version")
	fs.StringVar(&opts.PendingState, "pending-state", pendingPersisted, "`where` staged acknowledgements are kept: persisted, or memory as in the voted text")
	fs.StringVar(&opts.DataDir, "data-dir", "", "keep data in `directory` (default in memory)")
	fs.StringVar(&opts.Control, "control", "", "serve /healthz, /state, /metrics and /faults over HTTP on a loopback `address`")
	fs.BoolVar(&opts.AnyAddress, "any-address", false, "listen on all addresses instead of loopback")
	fs.StringVar(&opts.AdvertisedHost, "advertised-host", "", "with --any-address: the `host` that clients are told (default the name of this machine)")
	return cmd
}

const (
	pendingPersisted = "persisted"
	pendingMemory    = "memory"

	maxBrokers    = 16
	maxPartitions = 10_000
	maxPort       = 65_535
	maxTopicName  = 249 // Kafka's own limit
)

func dialectNames() []string {
	var names []string
	for _, dl := range wire.Dialects() {
		names = append(names, dl.Name)
	}
	return names
}

// checkSandboxConfig returns a usage error for what cannot be, and fills in the
// level that the profile implies.
func checkSandboxConfig(c *SandboxConfig) error {
	dialect, ok := wire.DialectByName(c.Profile)
	switch {
	case c.Brokers < 1 || c.Brokers > maxBrokers:
		return usagef("--brokers %d: want 1 to %d", c.Brokers, maxBrokers)
	case c.Port < 0 || c.Port > maxPort-c.Brokers+1:
		return usagef("--port %d: want 0 to %d", c.Port, maxPort-c.Brokers+1)
	case !ok:
		return usagef("--profile %q: want %s", c.Profile, dialectChoice())
	case c.ShareVersion < -1 || c.ShareVersion > int(dialect.ShareVersion):
		return usagef("--share-version %d: profile %q supports 0 to %d", c.ShareVersion, c.Profile, dialect.ShareVersion)
	case c.PendingState != pendingPersisted && c.PendingState != pendingMemory:
		return usagef("--pending-state %q: want %s or %s", c.PendingState, pendingPersisted, pendingMemory)
	case c.AdvertisedHost != "" && !c.AnyAddress:
		return usagef("--advertised-host: needs --any-address")
	case !isHost(c.AdvertisedHost):
		return usagef("--advertised-host %q: want a host name or an IP address, without a port", c.AdvertisedHost)
	}
	if err := checkControl(c); err != nil {
		return err
	}
	if c.ShareVersion == -1 {
		c.ShareVersion = int(dialect.ShareVersion)
	}
	return nil
}

// isHost holds for what can stand before a port in an address, and for "".
func isHost(s string) bool {
	ip, _, _ := strings.Cut(s, "%") // a zone may follow
	return net.ParseIP(ip) != nil || !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '.' && r != '-' && r != '_'
	})
}

// checkControl refuses control addresses that other machines could reach; the
// endpoint would refuse them anyway.
func checkControl(c *SandboxConfig) error {
	if c.Control == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(c.Control)
	if err != nil || port == "" {
		return usagef("--control %q: want HOST:PORT, such as %s", withoutUser(c.Control), defaultControl)
	}
	if !isLoopback(host) {
		return usagef("--control %q: not a loopback address", withoutUser(c.Control))
	}
	return nil
}

// parseSandboxTopics reads --topic and --load. A topic that is loaded and not
// named gets the default number of partitions.
func parseSandboxTopics(topics, loads []string) ([]SandboxTopic, []sandboxLoad, error) {
	var ts []SandboxTopic
	for _, s := range topics {
		t, err := parseSandboxTopic(s)
		if err != nil {
			return nil, nil, err
		}
		if slices.ContainsFunc(ts, func(o SandboxTopic) bool { return o.Name == t.Name }) {
			return nil, nil, usagef("--topic %q: given twice", t.Name)
		}
		ts = append(ts, t)
	}
	var ls []sandboxLoad
	stdin := 0
	for _, s := range loads {
		topic, file, ok := strings.Cut(s, "=")
		if !ok || file == "" || !isTopicName(topic) {
			return nil, nil, usagef("--load %q: want TOPIC=FILE, or TOPIC=- for stdin", s)
		}
		if err := checkTopicName("--load", s, topic); err != nil {
			return nil, nil, err
		}
		if file == "-" {
			stdin++
		}
		if !slices.ContainsFunc(ts, func(o SandboxTopic) bool { return o.Name == topic }) {
			ts = append(ts, SandboxTopic{Name: topic, Partitions: defaultSandboxPartitions})
		}
		ls = append(ls, sandboxLoad{Topic: topic, File: file})
	}
	if stdin > 1 {
		return nil, nil, usagef("--load: stdin can be loaded once only")
	}
	return ts, ls, nil
}

func parseBrokerConfigs(configs []string) (map[string]string, error) {
	var out map[string]string
	for _, s := range configs {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return nil, usagef("--broker-config %q: want NAME=VALUE", s)
		}
		if out == nil {
			out = make(map[string]string)
		}
		out[name] = value
	}
	return out, nil
}

func parseSandboxTopic(s string) (SandboxTopic, error) {
	name, count, counted := strings.Cut(s, ":")
	t := SandboxTopic{Name: name, Partitions: defaultSandboxPartitions}
	if counted {
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 || n > maxPartitions {
			return t, usagef("--topic %q: want NAME or NAME:PARTITIONS with 1 to %d partitions", s, maxPartitions)
		}
		t.Partitions = n
	}
	return t, checkTopicName("--topic", s, name)
}

// checkTopicName returns a usage error, about the value of a flag, for a name that
// no topic can have, or that only one of Kafka's own has.
func checkTopicName(flag, value, name string) error {
	switch {
	case !isTopicName(name):
		return usagef("%s %q: a name has 1 to %d of the characters a-z, A-Z, 0-9, '.', '_' and '-'", flag, value, maxTopicName)
	case slices.Contains([]string{"__consumer_offsets", "__transaction_state", "__share_group_state"}, name):
		return usagef("%s %q: topic %s is internal to Kafka", flag, value, name)
	}
	return nil
}

// isTopicName holds for the names that Kafka allows.
func isTopicName(s string) bool {
	if s == "" || s == "." || s == ".." || len(s) > maxTopicName {
		return false
	}
	for _, r := range s {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.', r == '_', r == '-':
		default:
			return false
		}
	}
	return true
}

// runSandboxRun returns when the sandbox is ready. Files are opened first: a
// name that is wrong is told before anything starts.
func runSandboxRun(ctx context.Context, d *Deps, opts sandboxRunOptions) (*runningSandbox, error) {
	readers := make([]io.Reader, len(opts.Loads))
	for i, l := range opts.Loads {
		if l.File == "-" {
			readers[i] = interruptible(ctx, d.In)
			continue
		}
		f, err := os.Open(l.File)
		if err != nil {
			return nil, usagef("--load %s=%s: %v", l.Topic, l.File, err)
		}
		defer func() { _ = f.Close() }() // was only read
		if st, err := f.Stat(); err == nil && st.IsDir() {
			return nil, usagef("--load %s=%s: is a directory, want a file", l.Topic, l.File)
		}
		readers[i] = interruptible(ctx, f) // it may be a pipe, too
	}
	if opts.AnyAddress {
		d.Warn("the sandbox listens on all addresses of this machine, and lets everybody in who can reach it")
	}
	opts.Warning = d.Warn
	sb, err := d.StartSandbox(ctx, opts.SandboxConfig)
	if err != nil {
		return nil, err
	}
	running := &runningSandbox{Sandbox: sb, info: sandboxInfoOf(sb, opts.SandboxConfig)}
	for i, l := range opts.Loads {
		n, err := sb.Load(ctx, l.Topic, l.File, readers[i])
		if err != nil {
			if opts.DataDir != "" && errors.Is(err, kerr.UnknownServerError) {
				err = hintf(err, "look whether there is room left in %s", opts.DataDir)
			}
			return nil, cluster.Join(err, sb.Close())
		}
		running.info.Loaded = append(running.info.Loaded, sandboxLoaded{Topic: l.Topic, File: l.File, Records: n})
	}
	return running, nil
}

// interruptible returns a reader of what r gives, until ctx ends: a read of a
// terminal or of a pipe waits as long as nobody writes. What was begun then is
// left behind.
func interruptible(ctx context.Context, r io.Reader) io.Reader {
	pr, pw := io.Pipe()
	go func() {
		_, err := io.Copy(pw, r)
		_ = pw.CloseWithError(err) // nil is the end; never fails
	}()
	context.AfterFunc(ctx, func() { _ = pw.CloseWithError(context.Cause(ctx)) })
	return pr
}

func sandboxInfoOf(sb Sandbox, c SandboxConfig) sandboxInfo {
	return sandboxInfo{
		BootstrapServers: sb.BootstrapServers(),
		ClusterID:        sb.ClusterID(),
		Profile:          c.Profile,
		ShareVersion:     sb.ShareVersion(),
		PendingState:     c.PendingState,
		DataDir:          known(c.DataDir),
		Control:          known(sb.ControlAddress()),
	}
}

// serveSandbox says where the sandbox is and waits for the end. A signal is the
// end that was wanted; --timeout is not.
func serveSandbox(ctx context.Context, d *Deps, sb *runningSandbox) error {
	err := d.show(sandboxRunView(sb.info), nil)
	if err == nil {
		d.Notice("this is a sandbox: a Kafka for rehearsals inside this process, without authentication; stop it with Ctrl-C")
		<-ctx.Done()
		if cause := context.Cause(ctx); !isA[*SignalError]()(cause) {
			err = cause
		}
	}
	if cerr := sb.Close(); cerr != nil {
		err = cluster.Join(err, fmt.Errorf("close sandbox: %w", cerr))
	}
	return err
}

func sandboxRunView(info sandboxInfo) output.View {
	t := output.NewTable("BOOTSTRAP-SERVERS", "CLUSTER-ID", "PROFILE", "SHARE-VERSION", "PENDING-STATE", "DATA-DIR", "CONTROL")
	t.Row(output.Key(info.BootstrapServers), info.ClusterID, info.Profile, info.ShareVersion, info.PendingState, orNA(info.DataDir), orNA(info.Control))
	return output.View{
		Kind: "sandbox.run", Version: 1, ClusterID: info.ClusterID, Data: info,
		Text: info.BootstrapServers, Wide: t,
	}
}

func orNA(s *string) any {
	if s == nil {
		return output.NA()
	}
	return *s
}
