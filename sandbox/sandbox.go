package sandbox

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A Sandbox is a running cluster. It is safe for concurrent use.
type Sandbox struct {
	cfg     config
	dir     *dataDir
	txns    *txnLog
	warn    func(text string)
	cluster *kfake.Cluster
	kafka   *backend
	gateway *gateway
	plane   sharePlane

	closing sync.Once
	closed  error
}

// PortError says that a port is not free.
type PortError struct {
	Port int
	Err  error
}

// Error names the port.
func (e *PortError) Error() string { return fmt.Sprintf("port %d: %v", e.Port, e.Err) }

// Unwrap returns why the port could not be had.
func (e *PortError) Unwrap() error { return e.Err }

// Start starts a sandbox; ctx bounds the start alone. The sandbox runs until
// [Sandbox.Close]. It may return *PortError, *AddressError, *InUseError or
// *MismatchError, and what [Sandbox.Load] returns.
func Start(ctx context.Context, opts ...Option) (*Sandbox, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, fmt.Errorf("start sandbox: %w", err)
	}
	s := &Sandbox{cfg: cfg, warn: oncePerPause(cfg.warn)}
	if err := s.start(ctx); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("start sandbox: %w", err)
	}
	return s, nil
}

func (s *Sandbox) start(ctx context.Context) error {
	b := buildOf(s.cfg.dialect)
	var err error
	if s.dir, err = openDataDir(s.cfg.dataDir, newDataDirState(s.cfg, b)); err != nil {
		return err
	}
	if err := s.listen(); err != nil {
		return err
	}
	if err := s.openTransactionLog(); err != nil {
		return err
	}
	if err := s.startKafka(b); err != nil {
		return err
	}
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if err := s.startPlane(ctx, b); err != nil {
		return err
	}
	s.gateway.serve()
	s.gateway.wg.Go(s.gateway.sweepTransactions)
	for _, l := range s.cfg.loads {
		if err := s.loadFile(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// listen opens the listeners. Clients that come before the sandbox serves wait
// in their queue.
func (s *Sandbox) listen() error {
	g := &gateway{
		dialect: s.cfg.dialect, logf: s.cfg.logf,
		sasl: len(s.cfg.users) > 0, autoCreate: s.cfg.autoCreate, faults: newFaultTable(),
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	s.gateway = g
	for i := range s.cfg.brokers {
		port := 0
		if s.cfg.basePort > 0 {
			port = s.cfg.basePort + i
		}
		outer, err := s.cfg.listen("tcp", net.JoinHostPort(s.cfg.host, strconv.Itoa(port)))
		if err != nil && port > 0 {
			return &PortError{Port: port, Err: err}
		}
		if err != nil {
			return fmt.Errorf("broker %d: %w", i, err)
		}
		if s.cfg.tls != nil {
			outer = tls.NewListener(outer, s.cfg.tls)
		}
		g.nodes = append(g.nodes, &gatewayNode{id: int32(i), outer: outer, inner: newPipeListener(s.advertised(outer))})
	}
	return nil
}

// hostPort is an address that is only told.
type hostPort string

func (hostPort) Network() string  { return "tcp" }
func (a hostPort) String() string { return string(a) }

func (s *Sandbox) advertised(outer net.Listener) net.Addr {
	if s.cfg.advertisedHost == "" {
		return outer.Addr()
	}
	_, port, err := net.SplitHostPort(outer.Addr().String())
	if err != nil {
		return outer.Addr()
	}
	return hostPort(net.JoinHostPort(s.cfg.advertisedHost, port))
}

// openTransactionLog opens the transaction log, and after a crash makes what
// kfake kept fit to be opened.
func (s *Sandbox) openTransactionLog() error {
	var err error
	if s.txns, err = openTxnLog(s.dir.transactions(), s.warn); err != nil {
		return err
	}
	s.gateway.txns = s.txns
	if s.dir.path == "" {
		return nil
	}
	if s.dir.get().Running {
		s.cfg.logf("data directory %s: the last sandbox was killed", s.dir.path)
		if err := recoverKafka(s.dir.kafka(), s.txns); err != nil {
			return err
		}
	}
	return s.dir.change(func(st *dataDirState) { st.Running = true })
}

// kfakeLogger passes what kfake has to say on. What it could not write is a
// warning: clients are told UNKNOWN_SERVER_ERROR or COORDINATOR_NOT_AVAILABLE,
// and not why.
type kfakeLogger struct {
	logf func(format string, args ...any)
	warn func(text string)
}

// Logf implements kfake.Logger.
func (l kfakeLogger) Logf(level kfake.LogLevel, format string, args ...any) {
	switch {
	case level == kfake.LogLevelError, level == kfake.LogLevelWarn && strings.HasPrefix(format, "persist"):
		l.warn(fmt.Sprintf(format, args...))
	case level == kfake.LogLevelWarn:
		l.logf("kfake: "+format, args...)
	}
}

// warnPause is how long one warning is not repeated.
const warnPause = time.Minute

// oncePerPause returns warn, less the texts that it has told lately. The names of
// partitions count as one: all of them are on one disk.
func oncePerPause(warn func(text string)) func(text string) {
	var mu sync.Mutex
	told := make(map[string]time.Time)
	return func(text string) {
		reason := text
		if i := strings.LastIndex(text, ": "); i >= 0 {
			reason = text[i:]
		}
		mu.Lock()
		last, again := told[reason]
		now := time.Now()
		again = again && now.Sub(last) < warnPause
		if !again {
			told[reason] = now
		}
		mu.Unlock()
		if !again {
			warn(text)
		}
	}
}

func (s *Sandbox) startKafka(b build) error {
	kept := s.dir.get()
	next := 0
	opts := []kfake.Opt{
		kfake.NumBrokers(s.cfg.brokers),
		kfake.ClusterID(kept.ClusterID),
		kfake.DefaultNumPartitions(defaultPartitions),
		kfake.WithLogger(kfakeLogger{s.cfg.logf, s.warn}),
		kfake.BrokerConfigs(s.cfg.brokerConfigs),
		kfake.MaxVersions(b.versions),
		kfake.ListenFn(func(string, string) (net.Listener, error) {
			if next == len(s.gateway.nodes) {
				return nil, errors.New("the number of brokers is fixed")
			}
			next++
			return s.gateway.nodes[next-1].inner, nil
		}),
	}
	if dir := s.dir.kafka(); dir != "" {
		opts = append(opts, kfake.DataDir(dir))
	}
	if s.cfg.autoCreate {
		opts = append(opts, kfake.AllowAutoTopicCreation())
	}
	if s.cfg.aclsEnabled {
		opts = append(opts, kfake.EnableACLs())
	}
	users, err := s.userOptions(kept.InternalPassword)
	if err != nil {
		return err
	}
	if s.cluster, err = kfake.NewCluster(append(opts, users...)...); err != nil {
		return fmt.Errorf("kfake: %w", err)
	}
	s.kafka = s.newBackend(kept)
	s.gateway.kafka = s.kafka
	return nil
}

// userOptions makes kfake authenticate, if there are users.
func (s *Sandbox) userOptions(internalPassword string) ([]kfake.Opt, error) {
	if len(s.cfg.users) == 0 {
		return nil, nil
	}
	opts := []kfake.Opt{kfake.EnableSASL(), kfake.Superuser(saslPlain, internalUser, internalPassword)}
	plain := map[string]string{internalUser: internalPassword}
	for _, u := range s.cfg.users {
		mechanism := u.Mechanism
		if mechanism == "" {
			mechanism = saslPlain
		}
		if mechanism == saslPlain {
			plain[u.Name] = u.Password
		}
		if u.Super {
			opts = append(opts, kfake.Superuser(mechanism, u.Name, u.Password))
		} else {
			opts = append(opts, kfake.User(mechanism, u.Name, u.Password))
		}
	}
	if s.dir.path == "" {
		return opts, nil
	}
	return opts, s.dir.patchUsers(plain)
}

func (s *Sandbox) newBackend(kept dataDirState) *backend {
	inner := make([]*pipeListener, 0, len(s.gateway.nodes))
	brokers := make([]node, 0, len(s.gateway.nodes))
	for _, n := range s.gateway.nodes {
		inner = append(inner, n.inner)
		host, port, _ := net.SplitHostPort(n.inner.addr.String())
		p, _ := strconv.ParseInt(port, 10, 32)
		brokers = append(brokers, node{id: n.id, host: host, port: int32(p)})
	}
	user, password := "", ""
	super := make(map[string]bool)
	if len(s.cfg.users) > 0 {
		user, password = internalUser, kept.InternalPassword
		super["User:"+internalUser] = true
	}
	for _, u := range s.cfg.users {
		if u.Super {
			super["User:"+u.Name] = true
		}
	}
	k := &backend{cluster: s.cluster, client: newBrokerClient(inner, user, password), txns: s.txns, faults: s.gateway.faults, brokers: brokers}
	k.auth = &authorizer{enabled: s.cfg.aclsEnabled, super: super, load: k.describeACLs}
	k.configs.groups = &groupConfigs{groups: kept.GroupConfigs, broker: k.brokerConfig, save: func(groups map[string]map[string]string) error {
		return s.dir.change(func(st *dataDirState) { st.GroupConfigs = groups })
	}}
	for group, values := range kept.GroupConfigs {
		s.cluster.SetGroupConfigs(group, ofConsumers(values))
	}
	return k
}

// stateTopicConfigs are those that Kafka gives the topic, and the one that makes
// kfake call it internal.
func stateTopicConfigs() map[string]string {
	return map[string]string{
		"cleanup.policy":    "delete",
		"compression.type":  "producer",
		"retention.ms":      "-1",
		"kfake.is_internal": "true",
	}
}

// prepare makes what has to be there before anybody connects.
func (s *Sandbox) prepare(ctx context.Context) error {
	if err := s.kafka.ensureTopic(ctx, stateTopic, s.cfg.statePartitions, stateTopicConfigs()); err != nil {
		return err
	}
	t, _ := s.kafka.topicByName(stateTopic)
	s.gateway.stateTopicID = t.id
	topics := s.cfg.topics
	for _, l := range s.cfg.loads {
		topics = append(topics, Topic{Name: l.Topic})
	}
	for _, t := range topics {
		n := t.Partitions
		if n == 0 {
			n = defaultPartitions
		}
		if err := s.kafka.ensureTopic(ctx, t.Name, n, nil); err != nil {
			return err
		}
	}
	if len(s.cfg.acls) > 0 {
		if err := s.kafka.createACLs(ctx, s.cfg.acls); err != nil {
			return fmt.Errorf("create access control lists: %w", err)
		}
	}
	if s.dir.path != "" {
		return s.kafka.putSCRAMUsers(ctx, s.cfg.users)
	}
	return nil
}

func (s *Sandbox) startPlane(ctx context.Context, b build) error {
	hello := kmsg.NewPtrApiVersionsRequest()
	hello.Version = 3
	hello.ClientSoftwareName, hello.ClientSoftwareVersion = "kshare", "sandbox"
	served, err := call[*kmsg.ApiVersionsResponse](ctx, s.kafka.client, 0, hello)
	if err == nil {
		err = codeError(served.ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("learn what kfake serves: %w", err)
	}
	kept := s.dir.get()
	features := &featureLevels{
		dialect: s.cfg.dialect, supported: b.features, levels: kept.Features, epoch: kept.FeaturesEpoch,
		pending: func() int { return s.plane.pendingCount() },
		save: func(levels map[string]int16, epoch int64) error {
			return s.dir.change(func(st *dataDirState) { st.Features, st.FeaturesEpoch = levels, epoch })
		},
	}
	s.gateway.features = features
	s.gateway.versions = &apiVersions{
		apis: servedAPIs(served.ApiKeys, b.versions), dialect: s.cfg.dialect, txnAcks: b.txnAcks,
		features: features, clusterID: kept.ClusterID,
	}
	if s.plane, err = s.newSharePlane(ctx, features.txnAcksEnabled); err != nil {
		return err
	}
	if s.cfg.wrapPlane != nil {
		s.plane = s.cfg.wrapPlane(s.plane)
	}
	s.gateway.plane = s.plane
	return nil
}

// Close stops the sandbox: connections are closed, and with a data directory all
// state is kept. It may be called more than once.
func (s *Sandbox) Close() error {
	s.closing.Do(func() { s.closed = s.close() })
	return s.closed
}

// close closes what was started, which after a failed start is not all.
func (s *Sandbox) close() error {
	var err error
	if s.gateway != nil {
		s.gateway.close()
	}
	if s.plane != nil {
		s.plane.close()
	}
	if s.kafka != nil {
		s.kafka.close()
	}
	if s.txns != nil {
		err = s.txns.close()
	}
	if s.cluster != nil {
		s.cluster.Close()
		err = errors.Join(err, s.dir.change(func(st *dataDirState) { st.Running = false }))
	}
	if s.dir != nil {
		err = errors.Join(err, s.dir.close())
	}
	return err
}

// Addrs returns the addresses that the brokers advertise, by node ID.
func (s *Sandbox) Addrs() []string {
	addrs := make([]string, 0, len(s.gateway.nodes))
	for _, n := range s.gateway.nodes {
		addrs = append(addrs, n.inner.addr.String())
	}
	return addrs
}

// BootstrapServers returns [Sandbox.Addrs] joined by commas, as clients are
// configured.
func (s *Sandbox) BootstrapServers() string {
	var b []byte
	for i, a := range s.Addrs() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, a...)
	}
	return string(b)
}

// ClusterID returns the ID of the cluster.
func (s *Sandbox) ClusterID() string { return s.dir.get().ClusterID }

// Dialect returns the form of KIP-1289 that the sandbox speaks.
func (s *Sandbox) Dialect() wire.Dialect { return s.cfg.dialect }

// randomText returns n random bytes in the base64 that Kafka writes IDs in.
func randomText(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}
