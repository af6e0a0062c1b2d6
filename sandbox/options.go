package sandbox

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The defaults of [Start].
const (
	defaultBrokers         = 3
	defaultHost            = "127.0.0.1"
	defaultPartitions      = 6  // of a topic whose partitions are not given
	defaultStatePartitions = 50 // share.coordinator.state.topic.num.partitions
)

// lookupTimeout bounds the look-up of the name to listen on.
const lookupTimeout = 10 * time.Second

// An Option changes how [Start] sets a sandbox up.
type Option func(*config)

type config struct {
	brokers         int
	host            string
	advertisedHost  string
	basePort        int
	anyAddress      bool
	dialect         wire.Dialect
	shareVersion    int16 // -1: the dialect's
	pending         PendingState
	dataDir         string
	statePartitions int32
	topics          []Topic
	autoCreate      bool
	loads           []Load
	brokerConfigs   map[string]string
	users           []User
	acls            []ACL
	aclsEnabled     bool
	tls             *tls.Config
	clusterID       string
	logf            func(format string, args ...any)
	warn            func(text string)
	listen          func(network, address string) (net.Listener, error)
	wrapPlane       func(sharePlane) sharePlane // of tests; nil: none
}

func newConfig(opts []Option) (config, error) {
	dialect, _ := wire.DialectByName("kip")
	c := config{
		brokers: defaultBrokers, host: defaultHost, dialect: dialect, shareVersion: -1,
		statePartitions: defaultStatePartitions,
		logf:            func(string, ...any) {},
		warn:            func(string) {},
		listen:          net.Listen,
	}
	for _, opt := range opts {
		opt(&c)
	}
	if c.shareVersion < 0 {
		c.shareVersion = c.dialect.ShareVersion
	}
	return c, c.validate()
}

func (c *config) validate() error {
	switch {
	case c.brokers < 1:
		return fmt.Errorf("a sandbox of %d brokers: at least 1 is needed", c.brokers)
	case c.basePort < 0 || c.basePort > 65535 || c.basePort > 0 && c.basePort+c.brokers-1 > 65535:
		return fmt.Errorf("ports %d to %d: out of range", c.basePort, c.basePort+c.brokers-1)
	case c.dialect.Key <= 0:
		return fmt.Errorf("dialect %q has no api key", c.dialect.Name)
	case c.shareVersion > c.dialect.ShareVersion:
		return fmt.Errorf("share.version %d: dialect %s supports 0 to %d", c.shareVersion, c.dialect.Name, c.dialect.ShareVersion)
	case c.statePartitions < 1:
		return fmt.Errorf("%s with %d partitions", stateTopic, c.statePartitions)
	case c.aclsEnabled && len(c.users) == 0:
		return fmt.Errorf("access control lists without users: nobody could be authorised")
	}
	for _, t := range c.topics {
		if err := t.validate(); err != nil {
			return err
		}
	}
	for _, u := range c.users {
		if err := u.validate(); err != nil {
			return err
		}
	}
	for _, name := range sortedKeys(c.brokerConfigs) {
		if err := checkBrokerConfig(name, c.brokerConfigs[name]); err != nil {
			return err
		}
	}
	return c.validateHost()
}

// validateHost refuses what would open the sandbox to the network unasked. A
// name is judged by its addresses, all of them.
func (c *config) validateHost() error {
	ips := []net.IP{net.ParseIP(c.host)}
	if ips[0] == nil {
		if c.host == "localhost" {
			return nil
		}
		var err error
		if ips, err = lookupIPs(c.host); err != nil {
			return fmt.Errorf("listen on %s: %w", c.host, err)
		}
	}
	if !c.anyAddress && slices.ContainsFunc(ips, func(ip net.IP) bool { return !ip.IsLoopback() }) {
		return &AddressError{Host: c.host}
	}
	if c.advertisedHost == "" && slices.ContainsFunc(ips, net.IP.IsUnspecified) {
		return fmt.Errorf("listen on %s: clients need an address they can reach, give the one to advertise", c.host)
	}
	return nil
}

func lookupIPs(host string) ([]net.IP, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	ips := make([]net.IP, 0, len(addrs))
	for _, a := range addrs {
		ips = append(ips, a.IP)
	}
	return ips, err
}

// AddressError says that the sandbox was asked to listen on an address that
// other machines can reach, without [WithAnyAddress].
type AddressError struct{ Host string }

// Error names the address.
func (e *AddressError) Error() string {
	return fmt.Sprintf("listen on %s: not a loopback address, and the sandbox protects nothing", e.Host)
}

// WithBrokers sets the number of brokers; the default is 3. Their node IDs
// count from 0.
func WithBrokers(n int) Option { return func(c *config) { c.brokers = n } }

// WithHost sets the host name or address to listen on and to advertise; the
// default is 127.0.0.1. Anything but loopback needs [WithAnyAddress].
func WithHost(host string) Option { return func(c *config) { c.host = host } }

// WithAnyAddress allows a host that other machines can reach.
func WithAnyAddress() Option { return func(c *config) { c.anyAddress = true } }

// WithAdvertisedHost sets the host that clients are told, where it differs from
// the one to listen on, as with 0.0.0.0.
func WithAdvertisedHost(host string) Option { return func(c *config) { c.advertisedHost = host } }

// WithBasePort makes broker i listen on port+i. The default, 0, takes any free
// ports.
func WithBasePort(port int) Option { return func(c *config) { c.basePort = port } }

// WithDialect sets the form of KIP-1289 that the sandbox speaks; the default is
// "kip". See [wire.Dialects] and the package comment.
func WithDialect(d wire.Dialect) Option { return func(c *config) { c.dialect = d } }

// WithShareVersion sets the level of share.version that a new sandbox starts
// at; the default is the level that enables TxnShareAcknowledge. A data
// directory that was used before keeps its level.
func WithShareVersion(level int16) Option { return func(c *config) { c.shareVersion = level } }

// PendingState says where a leader keeps TX_PENDING.
type PendingState int8

const (
	// PendingPersisted writes it to __share_group_state: it survives the
	// leader. This is the follow-up that KIP-1289 announces, and what its
	// newer drafts do.
	PendingPersisted PendingState = iota
	// PendingMemory keeps it in the leader alone, as the text put to the vote
	// does: a leader that crashes forgets what was staged.
	PendingMemory
)

// String returns "persisted" or "memory".
func (p PendingState) String() string {
	switch p {
	case PendingPersisted:
		return "persisted"
	case PendingMemory:
		return "memory"
	}
	return "PendingState(" + strconv.Itoa(int(p)) + ")"
}

// ParsePendingState is the inverse of [PendingState.String].
func ParsePendingState(s string) (PendingState, error) {
	for _, p := range []PendingState{PendingPersisted, PendingMemory} {
		if s == p.String() {
			return p, nil
		}
	}
	return 0, fmt.Errorf("pending state %q: neither %q nor %q", s, PendingPersisted, PendingMemory)
}

// WithPendingState sets where TX_PENDING is kept; the default is
// [PendingPersisted].
func WithPendingState(p PendingState) Option { return func(c *config) { c.pending = p } }

// WithDataDir keeps everything in a directory, which is created if need be. A
// sandbox started there again, in the same dialect and with as many brokers,
// goes on where the last one ended. Without it all is in memory.
func WithDataDir(dir string) Option { return func(c *config) { c.dataDir = dir } }

// WithStatePartitions sets the number of partitions of __share_group_state; the
// default is Kafka's, 50.
func WithStatePartitions(n int32) Option { return func(c *config) { c.statePartitions = n } }

// Topic is a topic to create.
type Topic struct {
	Name       string
	Partitions int32 // 0: the default, 6
}

func (t Topic) validate() error {
	switch {
	case !validTopicName(t.Name):
		return fmt.Errorf("topic %q: not a topic name", t.Name)
	case t.Partitions < 0 || t.Partitions > maxNewPartitions:
		return fmt.Errorf("topic %q: %d partitions, at most %d are allowed", t.Name, t.Partitions, maxNewPartitions)
	}
	return nil
}

// validTopicName is Kafka's rule. kfake has none, and makes directories of the
// names.
func validTopicName(name string) bool {
	if name == "" || name == "." || name == ".." || len(name) > 249 {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	})
}

// WithTopics adds topics to create at the start, unless they exist.
func WithTopics(topics ...Topic) Option {
	return func(c *config) { c.topics = append(c.topics, topics...) }
}

// WithTopicAutoCreation lets a client's Metadata request create the topics it
// names.
func WithTopicAutoCreation() Option { return func(c *config) { c.autoCreate = true } }

// Load is a file to load into a topic at the start.
type Load struct {
	Topic string
	Path  string // "-" is not special: a sandbox does not read stdin
	LoadOptions
}

// WithLoads adds files to load. A topic that does not exist is created with the
// default number of partitions.
func WithLoads(loads ...Load) Option {
	return func(c *config) { c.loads = append(c.loads, loads...) }
}

// WithBrokerConfigs sets broker configs, such as transaction.max.timeout.ms or
// group.share.record.lock.duration.ms.
func WithBrokerConfigs(configs map[string]string) Option {
	return func(c *config) {
		if c.brokerConfigs == nil {
			c.brokerConfigs = make(map[string]string)
		}
		maps.Copy(c.brokerConfigs, configs)
	}
}

// User is somebody who may connect, with SASL over a plain connection or TLS.
type User struct {
	Name, Password string
	Mechanism      string // PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; "" is PLAIN
	Super          bool   // passes every check of [WithACLs]
}

func (u User) validate() error {
	switch {
	case u.Name == "" || u.Password == "":
		return fmt.Errorf("user %q: a name and a password are needed", u.Name)
	case u.Name == internalUser:
		return fmt.Errorf("user %q: the name is taken by the sandbox itself", u.Name)
	case strings.ContainsRune(u.Name+u.Password, 0):
		return fmt.Errorf("user %q: a NUL in the name or password", u.Name)
	}
	switch u.Mechanism {
	case "", saslPlain, saslScram256, saslScram512:
		return nil
	}
	return fmt.Errorf("user %q: SASL mechanism %q is not served", u.Name, u.Mechanism)
}

// WithUsers makes clients authenticate as one of the users.
func WithUsers(users ...User) Option {
	return func(c *config) { c.users = append(c.users, users...) }
}

// ACL allows or denies a principal something, as Kafka's AclBinding does.
type ACL struct {
	Principal string // "User:alice"; "User:*" is everybody
	Host      string // "" is "*"
	Resource  kmsg.ACLResourceType
	Name      string // "*" with the literal pattern is every name
	Pattern   kmsg.ACLResourcePatternType
	Operation kmsg.ACLOperation
	Deny      bool
}

// WithACLs turns authorisation on, with these access control lists beside those
// that clients create. What no list allows is denied, except to users that are
// Super. It needs [WithUsers].
func WithACLs(acls ...ACL) Option {
	return func(c *config) {
		c.aclsEnabled = true
		c.acls = append(c.acls, acls...)
	}
}

// WithTLS makes the brokers speak TLS.
func WithTLS(t *tls.Config) Option { return func(c *config) { c.tls = t } }

// WithClusterID sets the cluster ID of a new sandbox; the default is random.
func WithClusterID(id string) Option { return func(c *config) { c.clusterID = id } }

// WithLogger sets where the sandbox tells what it does, one line a call; the
// default is nowhere. It may be called from several goroutines at once.
func WithLogger(logf func(format string, args ...any)) Option {
	return func(c *config) { c.logf = logf }
}

// WithWarnings sets where the sandbox tells what somebody has to do something
// about, such as that its disk is full; the default is nowhere. One text is told
// once a minute. It may be called from several goroutines at once.
func WithWarnings(warn func(text string)) Option {
	return func(c *config) { c.warn = warn }
}

// WithListen sets the function that opens the listeners of the brokers; the
// default is [net.Listen]. With that of kfake's VirtualNetwork, and a base
// port, a sandbox lives in a testing/synctest bubble.
func WithListen(listen func(network, address string) (net.Listener, error)) Option {
	return func(c *config) { c.listen = listen }
}
