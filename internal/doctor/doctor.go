package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/cluster/auth"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Options says what to look at.
type Options struct {
	Cluster cluster.Config
	// Identity says as whom the client connects.
	Identity auth.Options
	// Groups, Topics and TransactionalIDs are resources whose ACLs matter.
	Groups, Topics, TransactionalIDs []string
	// Now is the clock that certificates expire by.
	Now func() time.Time
}

// connectTimeout bounds the wait for one bootstrap server.
const connectTimeout = 5 * time.Second

// certificateWarning is how long before a certificate expires it is told.
const certificateWarning = 30 * 24 * time.Hour

// Run looks at everything. When no bootstrap server answers there is a report of
// just that, with the error of the first: *cluster.AuthError, *cluster.DialError
// or *cluster.ListenerError.
func Run(ctx context.Context, o Options) (*Report, error) {
	r := &Report{}
	cl, err := r.connect(ctx, o)
	if err != nil {
		return r, err
	}
	defer cl.Close()
	r.identity(o.Identity)
	brokers := r.cluster(ctx, cl)
	r.dialect(brokers, o.Cluster.Dialect)
	for _, topic := range stateTopics() {
		r.stateTopic(ctx, cl, topic, len(brokers))
	}
	r.access(ctx, cl, o)
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	return r, nil
}

// server is what became of a connection to one bootstrap server.
type server struct {
	cl  *cluster.Client
	err error
	tls *tls.ConnectionState // nil without TLS
}

// connect tries every bootstrap server, all at once, and returns a client of the
// first one that answers.
func (r *Report) connect(ctx context.Context, o Options) (*cluster.Client, error) {
	addrs := o.Cluster.BootstrapServers
	if len(addrs) == 0 {
		return nil, errors.New("no bootstrap server was given")
	}
	servers := make([]server, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		wg.Go(func() { servers[i] = connectTo(ctx, o.Cluster, addr) })
	}
	wg.Wait()
	var first *cluster.Client
	for i, s := range servers {
		r.server(addrs[i], s, o)
		switch {
		case s.cl == nil:
		case first == nil:
			first = s.cl
		default:
			s.cl.Close()
		}
	}
	if first == nil {
		return nil, servers[0].err
	}
	return first, nil
}

func connectTo(ctx context.Context, cfg cluster.Config, addr string) (s server) {
	cfg.BootstrapServers = []string{addr}
	var mu sync.Mutex
	if cfg.TLS != nil {
		own := cfg.TLS.Clone()
		verify := own.VerifyConnection
		own.VerifyConnection = func(state tls.ConnectionState) error {
			mu.Lock()
			s.tls = &state
			mu.Unlock()
			if verify == nil {
				return nil
			}
			return verify(state)
		}
		cfg.TLS = own
	}
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf("no answer within %s", connectTimeout))
	defer cancel()
	cl, err := cluster.Connect(ctx, cfg)
	mu.Lock()
	defer mu.Unlock()
	return server{cl, err, s.tls}
}

func (r *Report) server(addr string, s server, o Options) {
	const check = "bootstrap_server"
	if s.err != nil {
		advice := ""
		if h, ok := errors.AsType[interface {
			error
			Hint() string
		}](s.err); ok {
			advice = h.Hint()
		}
		r.add(check, addr, Failed, s.err.Error(), advice)
		return
	}
	detail := "answers, " + o.Identity.Protocol()
	if s.tls == nil || len(s.tls.PeerCertificates) == 0 {
		r.add(check, addr, OK, detail, "")
		return
	}
	leaf := s.tls.PeerCertificates[0]
	detail += fmt.Sprintf(", %s, certificate of %s", tls.VersionName(s.tls.Version), auth.DescribeCertificate(leaf))
	state, advice := expiry(leaf, o.Now())
	r.add(check, addr, state, detail, advice)
}

// expiry says whether a certificate has to be renewed soon.
func expiry(c *x509.Certificate, now time.Time) (State, string) {
	switch left := c.NotAfter.Sub(now); {
	case left < 0:
		return Warning, "the certificate has expired: renew it"
	case left < certificateWarning:
		return Warning, fmt.Sprintf("the certificate expires in %d days: renew it", int(left.Hours()/24))
	}
	return OK, ""
}

// identity says as whom the client is known, which no broker tells.
func (r *Report) identity(o auth.Options) {
	const check, mapped = "identity", "; brokers may map it to another one, which they do not tell"
	switch {
	case o.SASL != nil && o.SASL.Name == auth.MechanismAWSMSKIAM:
		r.add(check, "", OK, "the IAM identity of the AWS credentials"+mapped, "")
	case o.SASL != nil && o.SASL.Name == auth.MechanismOAuthBearer:
		r.add(check, "", OK, "the subject of the token"+mapped, "")
	case o.SASL != nil && o.SASL.DelegationToken:
		r.add(check, "", OK, "the owner of the delegation token", "")
	case o.SASL != nil && o.SASL.User == "":
		r.add(check, "", OK, "the principal of the Kerberos ticket"+mapped, "")
	case o.SASL != nil:
		r.add(check, "", OK, fmt.Sprintf("User:%s, logged in by %s%s", o.SASL.User, o.SASL.Name, mapped), "")
	case o.TLS != nil:
		r.certificateIdentity(o.TLS)
	default:
		r.add(check, "", OK, "User:ANONYMOUS: the listener asks for no login", "")
	}
}

func (r *Report) certificateIdentity(t *auth.TLS) {
	config, err := t.Config()
	if err != nil || len(config.Certificates) == 0 {
		r.add("identity", "", OK, "User:ANONYMOUS: no certificate is shown and the listener asks for no login", "")
		return
	}
	r.add("identity", "", OK, fmt.Sprintf("User:%s, by certificate if the listener asks for one; brokers may map it to another one, which they do not tell", config.Certificates[0].Leaf.Subject), "")
}

// cluster lists the brokers, and returns their ApiVersions.
func (r *Report) cluster(ctx context.Context, cl *cluster.Client) []cluster.BrokerVersions {
	d, err := cl.Describe(ctx)
	if err != nil && len(d.Brokers) == 0 {
		r.add("cluster", "", Unknown, err.Error(), "")
		return nil
	}
	r.ClusterID = d.ClusterID
	silent := 0
	for _, b := range d.Brokers {
		if b.Err != nil {
			silent++
		}
	}
	state, detail := OK, fmt.Sprintf("%s, %d brokers", d.ClusterID, len(d.Brokers))
	if silent > 0 {
		state, detail = Failed, fmt.Sprintf("%s, %d of %d brokers do not answer", detail, silent, len(d.Brokers))
	}
	advice := ""
	if err != nil {
		state, advice = Unknown, "brokers that are fenced may be missing: "+err.Error()
	}
	r.add("cluster", d.ClusterID, state, detail, advice)
	for _, b := range d.Brokers {
		r.broker(b)
	}
	return d.Brokers
}

func (r *Report) broker(b cluster.BrokerVersions) {
	subject := fmt.Sprintf("%d", b.NodeID)
	at := fmt.Sprintf("%s:%d", b.Host, b.Port)
	switch {
	case errors.Is(b.Err, cluster.ErrFenced):
		r.add("broker", subject, Failed, at+" is "+b.Err.Error(), "start the broker, or unregister it if it is gone for good")
	case b.Err != nil:
		r.add("broker", subject, Failed, fmt.Sprintf("%s does not answer: %v", at, b.Err), "check that its advertised.listeners can be reached from here")
	default:
		r.add("broker", subject, OK, fmt.Sprintf("%s answers, with %d api keys%s", at, len(b.Keys), features(b)), "")
	}
}

// features are the levels that matter here.
func features(b cluster.BrokerVersions) string {
	var out strings.Builder
	for _, name := range []string{"metadata.version", wire.FeatureShareVersion, wire.FeatureTransactionVersion} {
		if v, ok := b.Supported[name]; ok {
			fmt.Fprintf(&out, ", %s %d of %d-%d", name, b.Finalized[name], v.Min, v.Max)
		}
	}
	return out.String()
}

// dialect says whether transactional acknowledgements may be sent.
func (r *Report) dialect(brokers []cluster.BrokerVersions, override string) {
	s := cluster.Detect(brokers, override)
	state, advice := Warning, s.Unsupported().Advice
	switch s.Verdict {
	case cluster.Usable:
		state, advice = OK, ""
	case cluster.Unknown:
		state = Unknown
	case cluster.NotSupported, cluster.NotEnabled, cluster.Ambiguous, cluster.Mixed:
	}
	r.add("txn_share_acknowledge", "", state, fmt.Sprintf("transactional acknowledgement (KIP-1289): %s: %s", s.Verdict, s.Reason), advice)
}

const (
	shareStateTopic = "__share_group_state"
	txnStateTopic   = "__transaction_state"
)

func stateTopics() []string { return []string{shareStateTopic, txnStateTopic} }

// stateTopic says whether a topic that holds state is healthy.
func (r *Report) stateTopic(ctx context.Context, cl *cluster.Client, name string, brokers int) {
	const check = "state_topic"
	t, err := describeTopic(ctx, cl, name)
	switch {
	case isDenied(err):
		r.add(check, name, Unknown, "hidden: "+cluster.Name(err), "grant DESCRIBE on topic "+name+" to this principal")
		return
	case isAbsent(err):
		r.add(check, name, OK, "is not there; brokers make it at first use", "")
		return
	case err != nil:
		r.add(check, name, Unknown, cluster.Name(err), "")
		return
	}
	minISR := minInSync(ctx, cl, name)
	f := health(t, minISR, brokers)
	r.add(check, name, f.State, f.Detail, f.Advice)
}

// health judges a topic. minISR 0 is not known.
func health(t kmsg.MetadataResponseTopic, minISR, brokers int) Finding {
	var leaderless, thin, below []int32
	copies := 0
	for _, p := range t.Partitions {
		copies = max(copies, len(p.Replicas))
		switch {
		case p.Leader < 0:
			leaderless = append(leaderless, p.Partition)
		case len(p.ISR) < minISR:
			below = append(below, p.Partition)
		case len(p.ISR) < len(p.Replicas):
			thin = append(thin, p.Partition)
		}
	}
	detail := fmt.Sprintf("%d partitions, %d replicas", len(t.Partitions), copies)
	if minISR > 0 {
		detail += fmt.Sprintf(", min.insync.replicas %d", minISR)
	} else {
		detail += ", min.insync.replicas not known"
	}
	switch {
	case len(leaderless) > 0:
		return Finding{State: Failed, Detail: detail + ", without leader: " + partitions(leaderless), Advice: "start the brokers that have them; share groups or transactions of these partitions wait"}
	case len(below) > 0:
		return Finding{State: Failed, Detail: detail + ", in sync below that: " + partitions(below), Advice: "start the brokers that have the other replicas; nothing can be written until then"}
	case len(thin) > 0:
		return Finding{State: Warning, Detail: detail + ", under-replicated: " + partitions(thin), Advice: "start the brokers that have the other replicas"}
	case copies == 1 && brokers > 1:
		return Finding{State: Warning, Detail: detail, Advice: "with one replica the state of a broker that stops is not available: raise the replication factor"}
	}
	return Finding{State: OK, Detail: detail}
}

func partitions(ps []int32) string {
	slices.Sort(ps)
	const most = 10
	parts := make([]string, 0, len(ps))
	for i, p := range ps {
		if i == most {
			parts = append(parts, fmt.Sprintf("and %d more", len(ps)-most))
			break
		}
		parts = append(parts, fmt.Sprint(p))
	}
	return strings.Join(parts, ", ")
}
