package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl"
)

// Config says how to reach a cluster.
type Config struct {
	// BootstrapServers are host:port addresses; at least one.
	BootstrapServers []string
	// ClientID is sent with every request; "kshare" and Version when empty.
	ClientID string
	// Version is that of the program, which brokers are told as the version of
	// the client software (KIP-511); "" is not known.
	Version string
	// Dialect names the dialect to assume where ApiVersions is ambiguous; ""
	// assumes none. It never overrides "not supported".
	Dialect string
	// Dialer replaces the TCP dialer; nil dials TCP, with TLS when TLS is set.
	Dialer func(ctx context.Context, network, address string) (net.Conn, error)
	// TLS is used for every connection when it is set.
	TLS *tls.Config
	// SASL lists mechanisms to try, in order.
	SASL []sasl.Mechanism
	// DialTimeout bounds one attempt to connect; 0 is 10 s.
	DialTimeout time.Duration
	// Logger receives kgo's own log; nil drops it.
	Logger kgo.Logger
}

const (
	defaultDialTimeout = 10 * time.Second
	// connIdleTimeout is the default of the broker's connections.max.idle.ms: a
	// share session lives as long as its connection, so an idle one, during a
	// long transform, must not be reaped by us first.
	connIdleTimeout = 10 * time.Minute
)

// Client is a connection to a cluster. It is safe for concurrent use.
type Client struct {
	cfg   Config
	kgo   *kgo.Client
	seeds []string // who answered, and the brokers it named; nil before that

	mu        sync.Mutex
	versions  map[int32]BrokerVersions // by node ID, for sends that need a verdict
	clusterID string                   // as a broker last said; "" when none did
}

// Connect opens a connection and waits until a bootstrap server has answered.
// It may return *DialError, *AuthError, *ListenerError, or the context's error.
func Connect(ctx context.Context, cfg Config) (*Client, error) {
	if len(cfg.BootstrapServers) == 0 {
		return nil, &UnsupportedError{What: "a connection", Reason: "no bootstrap server was given"}
	}
	if cfg.Dialect != "" {
		if _, ok := wire.DialectByName(cfg.Dialect); !ok {
			return nil, fmt.Errorf("unknown dialect %q", cfg.Dialect)
		}
	}
	if cfg.ClientID == "" {
		cfg.ClientID = DefaultClientID(cfg.Version)
	}
	cfg.Version = softwareVersion(cfg.Version)
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = defaultDialTimeout
	}
	c := &Client{cfg: cfg, versions: make(map[int32]BrokerVersions)}
	cl, err := c.NewKgo()
	if err != nil {
		return nil, err
	}
	c.kgo = cl
	if err := c.ping(ctx); err != nil {
		cl.Close()
		return nil, err
	}
	return c, nil
}

// ping returns when a bootstrap server has answered. They are asked one after
// the other, and none may use up the time of the others by saying nothing.
func (c *Client) ping(ctx context.Context) error {
	seeds := c.kgo.SeedBrokers()
	var last error
	for i, seed := range seeds {
		seedCtx, cancel := limited(ctx, c.cfg.DialTimeout, len(seeds)-i)
		brokers, err := c.pingSeed(seedCtx, seed, c.cfg.BootstrapServers[i])
		cancel()
		if err == nil {
			return c.useSeeds(c.cfg.BootstrapServers[i], brokers)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// What one server says weighs more than the silence of another.
		if _, silent := errors.AsType[*DialError](last); last == nil || silent {
			last = err
		}
	}
	return last
}

func (c *Client) pingSeed(ctx context.Context, seed *kgo.Broker, addr string) ([]kmsg.MetadataResponseBroker, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	kresp, err := seed.Request(ctx, req)
	if err == nil {
		resp := kresp.(*kmsg.MetadataResponse)
		c.noteClusterID(resp)
		return resp.Brokers, nil
	}
	if !errors.Is(err, errHandshakeTimeout) { // no need to wait for it again
		if e := c.controllerListener(ctx, seed, addr); e != nil {
			return nil, e
		}
	}
	return nil, c.pingError(ctx, addr, err)
}

// pingError names the server, since a list of them may hold one that is wrong.
func (c *Client) pingError(ctx context.Context, addr string, err error) error {
	classified := classify(c.mismatch(err), c.cfg.BootstrapServers)
	_, silent := errors.AsType[*DialError](classified)
	_, auth := errors.AsType[*AuthError](classified)
	_, answer := errors.AsType[*kerr.Error](classified)
	switch {
	case silent, ctx.Err() != nil:
		return classified // names them all
	case auth, answer, connectionFailed(err):
		return fmt.Errorf("bootstrap server %s: %w", addr, classified)
	default:
		return &ListenerError{
			Addr: addr, Reason: fmt.Sprintf("does not answer as a Kafka broker does: %v", err),
			Advice: "check the port, and whether the listener uses TLS",
		}
	}
}

// useSeeds drops the bootstrap servers that did not answer: kgo asks a seed now
// and then, also for a coordinator, and gives up after a few that are dead.
func (c *Client) useSeeds(answered string, brokers []kmsg.MetadataResponseBroker) error {
	c.seeds = []string{answered}
	for _, b := range brokers {
		c.seeds = append(c.seeds, net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))))
	}
	return c.kgo.UpdateSeedBrokers(c.seeds...)
}

// controllerListener returns an error when a server is a KRaft controller: it
// answers ApiVersions, and has no Metadata to offer.
func (c *Client) controllerListener(ctx context.Context, seed *kgo.Broker, addr string) error {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = softwareName, c.cfg.Version
	// A controller closes the connection on which it was asked for Metadata, and
	// the request may be written to it before that is seen.
	var kresp kmsg.Response
	var err error
	for range 3 {
		if kresp, err = seed.Request(ctx, req); err == nil {
			break
		}
	}
	if err != nil {
		return nil // the caller knows that it does not answer
	}
	v := newBrokerVersions(kresp.(*kmsg.ApiVersionsResponse))
	_, metadata := v.Keys[int16(kmsg.Metadata)]
	_, vote := v.Keys[int16(kmsg.Vote)]
	if metadata || !vote {
		return nil
	}
	return &ListenerError{
		Addr: addr, Reason: "is the listener of a KRaft controller, which serves brokers and not clients",
		Advice: "give the address of a broker",
	}
}

// Clone opens further connections to the same cluster. A broker serves the
// requests of one connection one after the other, so whatever waits in a long
// fetch should have connections of its own. The caller closes the clone.
func (c *Client) Clone() (*Client, error) {
	clone := &Client{cfg: c.cfg, seeds: c.seeds, versions: make(map[int32]BrokerVersions), clusterID: c.ClusterID()}
	cl, err := clone.NewKgo()
	if err != nil {
		return nil, err
	}
	clone.kgo = cl
	return clone, nil
}

// NewKgo returns a further kgo client for this cluster, with opts added. The
// caller closes it.
func (c *Client) NewKgo(opts ...kgo.Opt) (*kgo.Client, error) {
	seeds := c.seeds
	if seeds == nil {
		seeds = c.cfg.BootstrapServers
	}
	base := []kgo.Opt{
		kgo.SeedBrokers(seeds...),
		kgo.ClientID(c.cfg.ClientID),
		kgo.SoftwareNameAndVersion(softwareName, c.cfg.Version),
		kgo.DialTimeout(c.cfg.DialTimeout),
		kgo.ConnIdleTimeout(connIdleTimeout),
		kgo.MaxVersions(maxVersions()),
	}
	switch {
	case c.cfg.Dialer != nil:
		base = append(base, kgo.Dialer(c.cfg.Dialer))
	case c.cfg.TLS != nil:
		base = append(base, kgo.Dialer(tlsDialer(c.cfg.TLS, c.cfg.DialTimeout)))
	}
	if len(c.cfg.SASL) > 0 {
		base = append(base, kgo.SASL(c.cfg.SASL...))
	}
	if c.cfg.Logger != nil {
		base = append(base, kgo.WithLogger(c.cfg.Logger))
	}
	cl, err := kgo.NewClient(append(base, opts...)...)
	if err != nil {
		return nil, &ConfigError{Err: err}
	}
	return cl, nil
}

// ClusterID returns the cluster ID that the brokers gave when the connection was
// made; "" when they did not say.
func (c *Client) ClusterID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clusterID
}

func (c *Client) noteClusterID(resp *kmsg.MetadataResponse) {
	if resp.ClusterID == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clusterID = *resp.ClusterID
}

// maxVersions is kgo's table of a stable Kafka with the keys of the dialects
// added, and the version of InitProducerId that KIP-939 adds: kgo refuses to send a key that its table lacks. It is no protection:
// key 93 is in the table already, as the streams request. The protection is
// [Client.BrokerAllows].
func maxVersions() *kversion.Versions {
	v := kversion.Stable()
	for _, d := range wire.Dialects() {
		if !v.HasKey(d.Key) {
			v.SetMaxKeyVersion(d.Key, d.MaxVersion)
		}
	}
	// kmsg's own request stays at the version that it knows.
	v.SetMaxKeyVersion(int16(kmsg.InitProducerID), wire.InitProducerIDTwoPhase)
	return v
}

// Dialect is the name of the dialect that the configuration assumes where
// ApiVersions is ambiguous; "" is none.
func (c *Client) Dialect() string { return c.cfg.Dialect }

// Close closes all connections.
func (c *Client) Close() { c.kgo.Close() }

// Request sends a request that kgo knows how to route. It may return
// *UnsupportedError when the broker does not know the request.
func (c *Client) Request(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	resp, err := c.kgo.Request(ctx, req)
	return resp, classifyAuth(classifyOld(req, err))
}

// Requestor returns the client for kmsg's RequestWith, with the errors of
// [Client.Request].
func (c *Client) Requestor() kmsg.Requestor { return c }

// RequestBroker sends a request to one broker, without retrying: the caller
// knows whether the request may be sent twice. It may return *UnsupportedError
// when the broker does not know the request.
func (c *Client) RequestBroker(ctx context.Context, node int32, req kmsg.Request) (kmsg.Response, error) {
	resp, err := c.kgo.Broker(int(node)).Request(ctx, req)
	return resp, classifyAuth(classifyOld(req, err))
}

// TxnShareAcknowledgeSupport asks every broker for its ApiVersions and decides
// whether TxnShareAcknowledge may be sent to this cluster; see [Detect]. It may
// return *DialError when no broker is known.
func (c *Client) TxnShareAcknowledgeSupport(ctx context.Context) (Support, error) {
	all, err := c.BrokerVersions(ctx)
	if err != nil {
		return Support{}, err
	}
	c.mu.Lock()
	for _, v := range all {
		if v.Err == nil {
			c.versions[v.NodeID] = v
		}
	}
	c.mu.Unlock()
	return Detect(all, c.cfg.Dialect), nil
}

// RequireTxnShareAcknowledge returns the dialect that the cluster speaks, or an
// *UnsupportedError that says why TxnShareAcknowledge must not be sent to it.
func (c *Client) RequireTxnShareAcknowledge(ctx context.Context) (wire.Dialect, error) {
	s, err := c.TxnShareAcknowledgeSupport(ctx)
	if err != nil {
		return wire.Dialect{}, err
	}
	if s.Verdict != Usable {
		return wire.Dialect{}, s.Unsupported()
	}
	return s.Dialect, nil
}

const whatTxnAcks = "transactional acknowledgement (KIP-1289)"

// Unsupported returns the verdict as an error that says what to do about it.
func (s Support) Unsupported() *UnsupportedError {
	e := &UnsupportedError{What: whatTxnAcks, Reason: s.Verdict.String() + ": " + s.Reason}
	switch s.Verdict {
	case NotEnabled:
		e.Advice = fmt.Sprintf("finalize share.version=%d and transaction.version=%d once every client is ready for it: kshare feature upgrade --enable txn-acks", s.Dialect.ShareVersion, wire.TransactionVersion)
	case Ambiguous:
		e.Advice = fmt.Sprintf("if this cluster is known to implement it, say so with --dialect %s", s.Dialect.Name)
	case Mixed:
		e.Advice = "finish the rolling upgrade, so that all brokers run the same software"
	case NotSupported:
		e.Advice = "no released Apache Kafka implements KIP-1289; rehearse with the embedded sandbox (kshare sandbox run)"
	case Unknown, Usable:
	}
	return e
}

// BrokerAllows returns nil when the broker's own ApiVersions carries the
// dialect, so that TxnShareAcknowledge may be sent to it, and otherwise an
// *UnsupportedError that names the broker. A broker that was not asked yet, one
// that joined later for instance, is asked now.
func (c *Client) BrokerAllows(ctx context.Context, node int32, d wire.Dialect) error {
	c.mu.Lock()
	v, ok := c.versions[node]
	c.mu.Unlock()
	if !ok {
		var err error
		if v, err = c.askVersions(ctx, node); err != nil {
			return err
		}
		v.NodeID = node
		c.mu.Lock()
		c.versions[node] = v
		c.mu.Unlock()
	}
	s := Detect([]BrokerVersions{v}, c.cfg.Dialect)
	if s.Verdict == Usable && s.Dialect.Name == d.Name {
		return nil
	}
	err := s.Unsupported()
	err.Reason = fmt.Sprintf("broker %d is %s", node, err.Reason)
	return err
}

// ForgetBrokers drops what is remembered of every broker's ApiVersions, after
// connections broke. The next [Client.BrokerAllows] asks again: a broker that
// was restarted may be another build, and a connection that is no more is found
// out by a request that may be sent twice.
func (c *Client) ForgetBrokers() {
	c.mu.Lock()
	clear(c.versions)
	c.mu.Unlock()
}

// ForgetBroker drops what is remembered of a broker's ApiVersions, after it
// answered that it does not know a request that it advertised.
func (c *Client) ForgetBroker(node int32) {
	c.mu.Lock()
	delete(c.versions, node)
	c.mu.Unlock()
}
