package kafkatest

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	mrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"
)

// startTimeout bounds the start of a node or of a cluster. An idle machine needs
// two seconds for a node.
const startTimeout = 2 * time.Minute

// Cluster is a running Kafka.
type Cluster struct {
	cfg       Config
	dir       string
	clusterID string
	nodes     []*node
	sec       *security // nil without security
	agents    agents    // none without metrics

	mu       sync.Mutex
	running  map[int32]*process
	releases map[string]release
	// archive is where the node, if there is one only, has to leave an archive of
	// its classes when it ends by itself; "" when there is an archive already.
	archive  string
	keepLogs bool
}

// Start starts a cluster that ends with the test. When the test fails, the end
// of each node's log is in its output, and the logs are kept.
func Start(tb testing.TB, cfg Config) *Cluster {
	tb.Helper()
	Need(tb)
	c, err := start(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := c.end(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	c.reportFailure(tb)
	return c
}

// Run starts a cluster for a program that is no test. The caller calls end in the
// end. It fails where Kafka is not [Available].
func Run(ctx context.Context, cfg Config) (c *Cluster, end func() error, err error) {
	if err := Available(); err != nil {
		return nil, nil, err
	}
	if c, err = start(ctx, cfg); err != nil {
		return nil, nil, err
	}
	return c, func() error { return c.end(context.Background()) }, nil
}

// sharedClusters are the clusters that tests of this process share. They are
// state of the package because tests of one process have no other thing in
// common.
var sharedClusters struct {
	mu      sync.Mutex
	main    bool // Main ends them
	started map[string]*sharedCluster
}

type sharedCluster struct {
	once    sync.Once
	cluster *Cluster
	err     error
}

// Main runs the tests of a package and ends the clusters that they shared. It is
// for a package whose tests call [Shared]:
//
//	func TestMain(m *testing.M) { kafkatest.Main(m) }
func Main(m *testing.M) {
	sharedClusters.mu.Lock()
	sharedClusters.main = true
	sharedClusters.started = make(map[string]*sharedCluster)
	sharedClusters.mu.Unlock()
	m.Run() // the testing package exits with what this returned
	sharedClusters.mu.Lock()
	defer sharedClusters.mu.Unlock()
	for _, s := range sharedClusters.started {
		if s.cluster != nil {
			if err := s.cluster.end(context.Background()); err != nil {
				panic(err) // no test is left to fail
			}
		}
	}
}

// Shared returns the cluster of this configuration, which it starts when no test
// of the package has asked for it before. Tests that share one use topics,
// groups and transactional IDs of their own, stop no nodes and change no feature
// levels. It needs [Main].
func Shared(tb testing.TB, cfg Config) *Cluster {
	tb.Helper()
	Need(tb)
	sharedClusters.mu.Lock()
	if !sharedClusters.main {
		sharedClusters.mu.Unlock()
		tb.Fatal("kafkatest.Shared needs func TestMain(m *testing.M) { kafkatest.Main(m) }")
	}
	key := fmt.Sprintf("%+v", cfg) // prints maps in the order of their keys
	s := sharedClusters.started[key]
	if s == nil {
		s = new(sharedCluster)
		sharedClusters.started[key] = s
	}
	sharedClusters.mu.Unlock()
	// It outlives the test that happens to be first.
	s.once.Do(func() { s.cluster, s.err = start(context.WithoutCancel(tb.Context()), cfg) })
	if s.err != nil {
		tb.Fatal(s.err)
	}
	s.cluster.reportFailure(tb)
	return s.cluster
}

// startTries is how often a cluster is started when others take its ports
// between their choice and Kafka's start.
const startTries = 3

// portTaken is what Kafka logs then.
const portTaken = "Address already in use"

func start(ctx context.Context, cfg Config) (*Cluster, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		c, err := startOnce(ctx, cfg)
		if err == nil || try == startTries || !strings.Contains(err.Error(), portTaken) {
			return c, err
		}
	}
}

func startOnce(ctx context.Context, cfg Config) (*Cluster, error) {
	c := &Cluster{cfg: cfg, running: make(map[int32]*process), releases: make(map[string]release)}
	if err := c.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare Kafka %s: %w", cfg.Version, err), c.end(ctx))
	}
	if err := c.startNodes(ctx, c.nodes...); err != nil {
		c.keepLogs = true
		err = fmt.Errorf("start Kafka %s: %w\n%s", cfg.Version, err, c.logTails())
		return nil, errors.Join(err, c.end(ctx))
	}
	return c, nil
}

// prepare gets the releases and writes everything that nodes need.
func (c *Cluster) prepare(ctx context.Context) error {
	var err error
	if c.dir, err = os.MkdirTemp("", "kafkatest-"); err != nil {
		return err
	}
	for _, f := range []struct{ path, level, target string }{
		{c.nodeLog(), "info", "SYSTEM_OUT"}, {c.toolLog(), "error", "SYSTEM_ERR"},
	} {
		if err := os.WriteFile(f.path, fmt.Appendf(nil, log4jProperties, f.target, f.level), 0o600); err != nil {
			return err
		}
	}
	if c.cfg.Security == SASLSSL {
		if c.sec, err = newSecurity(c.dir); err != nil {
			return err
		}
	}
	c.clusterID = randomUUID()
	if c.cfg.Exporter != "" {
		if c.agents, err = resolveAgents(ctx, c.dir, c.cfg.Exporter); err != nil {
			return err
		}
	}
	const each = 6 // some are not used
	ports, err := freePorts(ctx, each*c.cfg.Nodes)
	if err != nil {
		return err
	}
	for i := range c.cfg.Nodes {
		n := &node{
			id: int32(i + 1), directoryID: randomUUID(),
			client: ports[each*i], internal: ports[each*i+1], controller: ports[each*i+2], mutualTLS: ports[each*i+5],
			dir: filepath.Join(c.dir, "node-"+strconv.Itoa(i+1)),
		}
		if c.cfg.Exporter != "" {
			n.exporter, n.jolokia = ports[each*i+3], ports[each*i+4]
		}
		c.nodes = append(c.nodes, n)
		if err := os.Mkdir(n.dir, 0o700); err != nil {
			return err
		}
	}
	if c.sec != nil {
		if err := c.writeCommandConfig(filepath.Join(c.dir, "admin.properties"), Admin, Plain); err != nil {
			return err
		}
	}
	for _, n := range c.nodes {
		if _, err := c.release(ctx, c.cfg.version(n.id)); err != nil {
			return err
		}
		if err := os.WriteFile(n.properties(), []byte(c.cfg.properties(n, c.nodes, c.sec)), 0o600); err != nil {
			return err
		}
	}
	r, err := c.release(ctx, c.cfg.oldest())
	if err != nil {
		return err
	}
	var group errgroup.Group
	for _, n := range c.nodes {
		group.Go(func() error {
			_, err := c.run(ctx, r, "kafka.tools.StorageTool", c.cfg.formatArgs(c.clusterID, n.properties(), c.nodes, c.sec)...)
			return err
		})
	}
	return group.Wait()
}

const log4jProperties = `status=error
appender.console.type=Console
appender.console.name=console
appender.console.target=%s
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%%d{HH:mm:ss.SSS} %%p %%m (%%c{1})%%n%%throwable
rootLogger.level=%s
rootLogger.appenderRef.console.ref=console
logger.config.name=org.apache.kafka.common.config.AbstractConfig
logger.config.level=warn
`

func (c *Cluster) nodeLog() string { return filepath.Join(c.dir, "log4j2-node.properties") }
func (c *Cluster) toolLog() string { return filepath.Join(c.dir, "log4j2-tool.properties") }

func (n *node) properties() string { return filepath.Join(n.dir, "server.properties") }
func (n *node) log() string        { return filepath.Join(n.dir, "kafka.log") }

// release resolves a release once.
func (c *Cluster) release(ctx context.Context, version string) (release, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.releases[version]; ok {
		return r, nil
	}
	r, err := resolve(ctx, version)
	if err == nil {
		c.releases[version] = r
	}
	return r, err
}

// randomUUID returns a UUID in Kafka's text form, without the leading "-" that
// tools take for an option.
func randomUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[0] &= 0x7f
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// freePorts returns n addresses that nobody listens on. They are below the range
// that systems take ports of outgoing connections from, so that none is taken
// before Kafka, or Kafka started again, listens on it.
func freePorts(ctx context.Context, n int) ([]string, error) {
	const first, count, tries = 20000, 12000, 1000
	var listen net.ListenConfig
	var found []string
	for range tries {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+mrand.IntN(count)))
		if slices.Contains(found, addr) {
			continue
		}
		l, err := listen.Listen(ctx, "tcp", addr)
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return nil, err
		}
		if found = append(found, addr); len(found) == n {
			return found, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports on 127.0.0.1", n)
}

// startNodes starts nodes and waits until the cluster has all that run.
func (c *Cluster) startNodes(ctx context.Context, nodes ...*node) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %s", startTimeout))
	defer cancel()
	ctx, abandon := context.WithCancelCause(ctx)
	defer abandon(nil)
	for _, n := range nodes {
		p, err := c.startNode(ctx, n)
		if err != nil {
			return err
		}
		go func() {
			select {
			case <-p.done:
				abandon(fmt.Errorf("node %d ended: %w", n.id, errors.Join(p.err, errEnded)))
			case <-ctx.Done():
			}
		}()
	}
	return c.awaitNodes(ctx)
}

// errEnded is for a node that ends by itself with code 0.
var errEnded = errors.New("while starting")

func (c *Cluster) startNode(ctx context.Context, n *node) (*process, error) {
	r, err := c.release(ctx, c.cfg.version(n.id))
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile(n.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the node has its own
	args := append(c.agents.jvm(n), r.jvm("256m", c.nodeLog())...)
	archive := ""
	if len(c.nodes) == 1 && !r.hasArchive() && c.cfg.Exporter == "" { // an archive has no classes of agents
		archive = filepath.Join(c.dir, "classes.jsa")
		args = append([]string{"-XX:ArchiveClassesAtExit=" + archive}, args...)
	}
	// A node outlives the call that started it.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "java", append(args, "kafka.Kafka", n.properties())...)
	cmd.Stdout, cmd.Stderr = out, out
	p, err := startProcess(cmd)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[n.id], c.archive = p, archive
	return p, nil
}

// poll is the pause between two questions whether something is so yet.
const poll = 50 * time.Millisecond

// awaitNodes waits until there is a controller and every node that runs serves
// clients, as every one of them sees it, with finalized features.
func (c *Cluster) awaitNodes(ctx context.Context) error {
	for _, n := range c.nodes {
		if !c.isRunning(n.id) {
			continue
		}
		opts := append(c.Opts(Admin, Plain),
			kgo.SeedBrokers(n.client),
			kgo.RequestRetries(math.MaxInt), kgo.RetryTimeout(startTimeout),
			kgo.RetryBackoffFn(func(int) time.Duration { return poll }),
		)
		cl, err := kgo.NewClient(opts...)
		if err != nil {
			return err
		}
		err = c.await(ctx, func(ctx context.Context) (bool, error) { return c.ready(ctx, cl) })
		cl.Close()
		if err != nil {
			return fmt.Errorf("node %d: %w", n.id, err)
		}
	}
	return nil
}

func (c *Cluster) ready(ctx context.Context, cl *kgo.Client) (bool, error) {
	seed := cl.SeedBrokers()[0]
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	kresp, err := seed.RetriableRequest(ctx, req)
	if err != nil {
		return false, err
	}
	meta := kresp.(*kmsg.MetadataResponse)
	versions := kmsg.NewPtrApiVersionsRequest()
	versions.ClientSoftwareName, versions.ClientSoftwareVersion = "kafkatest", "1"
	kresp, err = seed.RetriableRequest(ctx, versions)
	if err != nil {
		return false, err
	}
	answer := kresp.(*kmsg.ApiVersionsResponse)
	if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
		return false, err
	}
	if meta.ControllerID < 0 || answer.FinalizedFeaturesEpoch < 0 {
		return false, nil
	}
	for _, n := range c.nodes {
		there := slices.ContainsFunc(meta.Brokers, func(b kmsg.MetadataResponseBroker) bool { return b.NodeID == n.id })
		if there != c.isRunning(n.id) {
			return false, nil
		}
	}
	return true, nil
}

// await asks until done says so, fails, or ctx ends.
func (c *Cluster) await(ctx context.Context, done func(context.Context) (bool, error)) error {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		ok, err := done(ctx)
		if ok {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *Cluster) isRunning(id int32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.running[id]
	return p != nil && p.running()
}

// Version is the release of the nodes, where Config.NodeVersions does not say
// otherwise.
func (c *Cluster) Version() string { return c.cfg.Version }

// ClusterID is the cluster's ID, as Metadata shows it.
func (c *Cluster) ClusterID() string { return c.clusterID }

// NodeIDs lists the nodes, ascending, running or not.
func (c *Cluster) NodeIDs() []int32 {
	ids := make([]int32, 0, len(c.nodes))
	for _, n := range c.nodes {
		ids = append(ids, n.id)
	}
	return ids
}

// Bootstrap lists the addresses of the brokers for clients, by node ID, running
// or not.
func (c *Cluster) Bootstrap() []string {
	addrs := make([]string, 0, len(c.nodes))
	for _, n := range c.nodes {
		addrs = append(addrs, n.client)
	}
	return addrs
}

// BootstrapMutualTLS lists the addresses of the brokers for clients that show a
// certificate of the cluster's CA, by node ID; security.protocol is SSL there, and
// the principal the certificate's subject. It is for clusters with [SASLSSL].
func (c *Cluster) BootstrapMutualTLS() []string {
	addrs := make([]string, 0, len(c.nodes))
	for _, n := range c.nodes {
		addrs = append(addrs, n.mutualTLS)
	}
	return addrs
}

// Controller is the address of a node's controller listener, which is not for
// clients. It is PLAINTEXT, or SASL_PLAINTEXT (PLAIN) with an authorizer.
func (c *Cluster) Controller(tb testing.TB, id int32) string {
	tb.Helper()
	return c.node(tb, id).controller
}

// Internal is the address of a node's listener between brokers, with the same
// protocol as that of the controller.
func (c *Cluster) Internal(tb testing.TB, id int32) string {
	tb.Helper()
	return c.node(tb, id).internal
}

func (c *Cluster) node(tb testing.TB, id int32) *node {
	tb.Helper()
	if id < 1 || int(id) > len(c.nodes) {
		tb.Fatalf("kafkatest: no node %d of %d", id, len(c.nodes))
	}
	return c.nodes[id-1]
}

// Client returns a client that ends with the test, as [Admin] where there are
// users.
func (c *Cluster) Client(tb testing.TB, opts ...kgo.Opt) *kgo.Client {
	tb.Helper()
	return c.ClientAs(tb, Admin, Plain, opts...)
}

// ClientAs is [Cluster.Client] as another user.
func (c *Cluster) ClientAs(tb testing.TB, u User, m Mechanism, opts ...kgo.Opt) *kgo.Client {
	tb.Helper()
	cl, err := kgo.NewClient(append(c.Opts(u, m), opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(cl.Close)
	return cl
}

// StopNode stops a node in good order, as for maintenance, and waits until it
// has ended and, where a majority of the nodes is left, until those know.
func (c *Cluster) StopNode(tb testing.TB, id int32) {
	tb.Helper()
	c.takeDown(tb, id, func(p *process) error { return p.stop(tb.Context()) })
}

// KillNode ends a node as a crash does, and waits like [Cluster.StopNode]. The
// others notice after broker.session.timeout.ms.
func (c *Cluster) KillNode(tb testing.TB, id int32) {
	tb.Helper()
	c.takeDown(tb, id, (*process).kill)
}

func (c *Cluster) takeDown(tb testing.TB, id int32, end func(*process) error) {
	tb.Helper()
	n := c.node(tb, id)
	c.mu.Lock()
	p := c.running[n.id]
	c.mu.Unlock()
	if p == nil || !p.running() {
		tb.Fatalf("kafkatest: node %d does not run", id)
	}
	if err := end(p); err != nil {
		tb.Fatalf("kafkatest: stop node %d: %v", id, err)
	}
	left := 0
	for _, n := range c.nodes {
		if c.isRunning(n.id) {
			left++
		}
	}
	if left <= len(c.nodes)/2 {
		return
	}
	ctx, cancel := context.WithTimeout(tb.Context(), startTimeout)
	defer cancel()
	if err := c.awaitNodes(ctx); err != nil {
		tb.Fatalf("kafkatest: after node %d stopped: %v", id, err)
	}
}

// StartNode starts a node again that was stopped or killed, and waits until it
// serves clients.
func (c *Cluster) StartNode(tb testing.TB, id int32) {
	tb.Helper()
	n := c.node(tb, id)
	if c.isRunning(id) {
		tb.Fatalf("kafkatest: node %d runs", id)
	}
	if err := c.startNodes(tb.Context(), n); err != nil {
		tb.Fatalf("kafkatest: start node %d: %v", id, err)
	}
}

// end ends all nodes and removes what they leave, but for the logs when a test
// failed.
func (c *Cluster) end(ctx context.Context) error {
	c.mu.Lock()
	running, archive, keepLogs := c.running, c.archive, c.keepLogs
	c.running = make(map[int32]*process)
	c.mu.Unlock()
	var errs []error
	for _, p := range running {
		if archive != "" && !keepLogs {
			errs = append(errs, p.stop(context.WithoutCancel(ctx)))
			c.takeArchive(archive)
			continue
		}
		errs = append(errs, p.kill())
	}
	if c.dir == "" {
		return errors.Join(errs...)
	}
	if !keepLogs {
		return errors.Join(append(errs, os.RemoveAll(c.dir))...)
	}
	for _, n := range c.nodes {
		errs = append(errs, os.RemoveAll(filepath.Join(n.dir, "data")))
	}
	return errors.Join(errs...)
}

// takeArchive moves an archive of classes to the cache, where the next JVM finds
// it. It is for speed alone: where it does not work, the next node starts as
// slowly as this one.
func (c *Cluster) takeArchive(archive string) {
	b, err := os.ReadFile(archive)
	if err != nil {
		return
	}
	target := c.releases[c.cfg.version(1)].archive
	temp, err := os.CreateTemp(filepath.Dir(target), "new-*.jsa")
	if err != nil {
		return
	}
	_, err = temp.Write(b)
	if errors.Join(err, temp.Close()) == nil && os.Rename(temp.Name(), target) == nil {
		return
	}
	_ = os.Remove(temp.Name())
}

// reportFailure makes a test that fails show the ends of the logs.
func (c *Cluster) reportFailure(tb testing.TB) {
	tb.Helper()
	tb.Cleanup(func() {
		if !tb.Failed() {
			return
		}
		c.mu.Lock()
		c.keepLogs = true
		c.mu.Unlock()
		tb.Logf("Kafka's logs are kept in %s\n%s", c.dir, c.logTails())
	})
}

// tailLines is how much of a log is shown.
const tailLines = 40

func (c *Cluster) logTails() string {
	var b strings.Builder
	for _, n := range c.nodes {
		log, err := os.ReadFile(n.log())
		if err != nil {
			continue // never started
		}
		lines := strings.Split(strings.TrimRight(string(log), "\n"), "\n")
		fmt.Fprintf(&b, "--- the last of %d lines of %s\n", len(lines), n.log())
		for _, l := range lines[max(0, len(lines)-tailLines):] {
			fmt.Fprintf(&b, "%.300s\n", l)
		}
	}
	return b.String()
}
