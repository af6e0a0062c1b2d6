package cluster

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kshare/kshare/internal/pause"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// VersionRange is an inclusive range of api versions or feature levels.
type VersionRange struct {
	Min int16 `json:"min" yaml:"min"`
	Max int16 `json:"max" yaml:"max"`
}

// BrokerVersions is what one broker answers to ApiVersions (KIP-584, KIP-1022).
type BrokerVersions struct {
	NodeID int32
	Host   string
	Port   int32

	// Keys maps each advertised api key to its range of versions.
	Keys map[int16]VersionRange
	// Supported maps each feature to the levels that the broker's software
	// knows. It is nil when the broker answers ApiVersions below v4, where
	// features with a minimum of 0, share.version among them, are left out.
	Supported map[string]VersionRange
	// Finalized maps each feature to its finalized level; a feature at level 0
	// is absent. Empty when FinalizedEpoch is -1.
	Finalized map[string]int16
	// FinalizedEpoch is the metadata offset of Finalized; -1 when unknown.
	FinalizedEpoch int64

	// Err is why the broker did not answer; the fields above are empty then.
	Err error
}

// Description is a cluster as its brokers describe it.
type Description struct {
	ClusterID string // "" when the brokers do not say
	// ControllerID is the node to send requests for the controller to; in a
	// KRaft cluster any broker, which forwards them. -1 when there is none.
	ControllerID int32
	// Brokers are all registered brokers, sorted by node ID. One that is fenced,
	// registered but not alive, has Err set to [ErrFenced]; brokers before
	// DescribeCluster v2 (Kafka 4.1) do not tell of those.
	Brokers []BrokerVersions
}

// ErrFenced is why a broker that is registered and not alive does not answer.
var ErrFenced = errors.New("registered, but fenced: it is not running or cannot reach the controller")

// apiVersionsWithZeroMin is the first ApiVersions version that lists features
// whose minimum level is 0.
const apiVersionsWithZeroMin = 4

// softwareName is what brokers are told of the software that asks.
const softwareName = "kshare"

// DefaultClientID is the client ID of a program of a version, which may be "".
func DefaultClientID(version string) string {
	if version == "" {
		return softwareName
	}
	return softwareName + "-" + softwareVersion(version)
}

// softwareVersion makes of a version what a broker accepts as one (KIP-511).
func softwareVersion(version string) string {
	v := strings.Trim(strings.Map(func(r rune) rune {
		if r == '.' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, version), ".-")
	if v == "" {
		return "unknown"
	}
	return v
}

func newBrokerVersions(resp *kmsg.ApiVersionsResponse) BrokerVersions {
	v := BrokerVersions{
		Keys:           make(map[int16]VersionRange, len(resp.ApiKeys)),
		Finalized:      make(map[string]int16, len(resp.FinalizedFeatures)),
		FinalizedEpoch: resp.FinalizedFeaturesEpoch,
	}
	for _, k := range resp.ApiKeys {
		v.Keys[k.ApiKey] = VersionRange{k.MinVersion, k.MaxVersion}
	}
	if resp.Version >= apiVersionsWithZeroMin {
		v.Supported = make(map[string]VersionRange, len(resp.SupportedFeatures))
		for _, f := range resp.SupportedFeatures {
			v.Supported[f.Name] = VersionRange{f.MinVersion, f.MaxVersion}
		}
	}
	if v.FinalizedEpoch >= 0 {
		for _, f := range resp.FinalizedFeatures {
			v.Finalized[f.Name] = f.MaxVersionLevel
		}
	}
	return v
}

// askTimeout bounds the wait for the ApiVersions of one broker, so that a silent
// one does not hide the answers of the others.
const askTimeout = 5 * time.Second

// BrokerVersions asks every broker for its ApiVersions; see [Client.Describe].
func (c *Client) BrokerVersions(ctx context.Context) ([]BrokerVersions, error) {
	d, err := c.Describe(ctx)
	return d.Brokers, err
}

// Describe asks every broker for its ApiVersions, all at once. A broker that
// does not answer within 5 s, or half of what is left of ctx, has Err set; the
// call fails only if the brokers cannot be listed. It may return *DialError,
// *NoBrokersError, *AuthError or *Error.
func (c *Client) Describe(ctx context.Context) (Description, error) {
	meta, err := c.metadata(ctx)
	if err != nil {
		return Description{}, err
	}
	d := Description{ControllerID: meta.ControllerID, Brokers: make([]BrokerVersions, len(meta.Brokers))}
	if meta.ClusterID != nil {
		d.ClusterID = *meta.ClusterID
	}
	askCtx, cancel := limited(ctx, askTimeout, 2)
	defer cancel()
	var wg sync.WaitGroup
	for i, b := range meta.Brokers {
		wg.Go(func() {
			v, err := c.askVersions(askCtx, b.NodeID)
			v.NodeID, v.Host, v.Port, v.Err = b.NodeID, b.Host, b.Port, err
			d.Brokers[i] = v
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return Description{}, context.Cause(ctx)
	}
	fenced, err := c.fencedBrokers(ctx, d.Brokers)
	if err != nil {
		return Description{}, err
	}
	d.Brokers = append(d.Brokers, fenced...)
	slices.SortFunc(d.Brokers, func(a, b BrokerVersions) int { return cmp.Compare(a.NodeID, b.NodeID) })
	return d, nil
}

// describeClusterFenced is the first DescribeCluster version that can list
// fenced brokers (KIP-1073).
const describeClusterFenced = 2

// fencedBrokers returns the registered brokers that Metadata leaves out, from
// the first of brokers that can tell; none where no broker can.
func (c *Client) fencedBrokers(ctx context.Context, brokers []BrokerVersions) ([]BrokerVersions, error) {
	i := slices.IndexFunc(brokers, func(b BrokerVersions) bool {
		return b.Keys[int16(kmsg.DescribeCluster)].Max >= describeClusterFenced
	})
	if i < 0 {
		return nil, nil
	}
	req := kmsg.NewPtrDescribeClusterRequest()
	req.IncludeFencedBrokers = true
	node := brokers[i].NodeID
	op := "list fenced brokers"
	kresp, err := c.kgo.Broker(int(node)).RetriableRequest(ctx, req)
	if err != nil {
		return nil, &Error{Op: op, Broker: node, Err: err}
	}
	resp := kresp.(*kmsg.DescribeClusterResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		e := &Error{Op: op, Broker: node, Err: err}
		if resp.ErrorMessage != nil {
			e.Detail = *resp.ErrorMessage
		}
		return nil, classifyAuth(e)
	}
	var fenced []BrokerVersions
	for _, b := range resp.Brokers {
		if b.IsFenced && !slices.ContainsFunc(brokers, func(o BrokerVersions) bool { return o.NodeID == b.NodeID }) {
			fenced = append(fenced, BrokerVersions{NodeID: b.NodeID, Host: b.Host, Port: b.Port, FinalizedEpoch: -1, Err: ErrFenced})
		}
	}
	return fenced, nil
}

func (c *Client) askVersions(ctx context.Context, node int32) (BrokerVersions, error) {
	req := kmsg.NewPtrApiVersionsRequest()
	// A broker refuses v3 and later without both (KIP-511).
	req.ClientSoftwareName, req.ClientSoftwareVersion = softwareName, c.cfg.Version
	kresp, err := c.kgo.Broker(int(node)).RetriableRequest(ctx, req)
	if err != nil {
		return BrokerVersions{FinalizedEpoch: -1}, &Error{Op: "read ApiVersions", Broker: node, Err: err}
	}
	resp := kresp.(*kmsg.ApiVersionsResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return BrokerVersions{FinalizedEpoch: -1}, &Error{Op: "read ApiVersions", Broker: node, Err: err}
	}
	return newBrokerVersions(resp), nil
}

func (c *Client) brokers(ctx context.Context) ([]kmsg.MetadataResponseBroker, error) {
	meta, err := c.metadata(ctx)
	if err != nil {
		return nil, err
	}
	return meta.Brokers, nil
}

// metadata returns Metadata without topics, its brokers sorted by node ID.
func (c *Client) metadata(ctx context.Context) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	resp, err := c.requestMetadata(ctx, req)
	if err != nil {
		return nil, classify(err, c.cfg.BootstrapServers)
	}
	slices.SortFunc(resp.Brokers, func(a, b kmsg.MetadataResponseBroker) int { return cmp.Compare(a.NodeID, b.NodeID) })
	return resp, nil
}

// metadataTries is to how many brokers a Metadata request goes before the
// silence of all of them is believed.
const metadataTries = 4

// requestMetadata sends a Metadata request. kgo sends each to the next broker
// that it knows, and one may accept a connection and never answer. A broker that
// is fenced answers, and where all are, it names none. It may return
// *NoBrokersError.
func (c *Client) requestMetadata(ctx context.Context, req *kmsg.MetadataRequest) (*kmsg.MetadataResponse, error) {
	var last error
	for try := 1; ; try++ {
		tryCtx, cancel := limited(ctx, askTimeout, metadataTries)
		resp, err := req.RequestWith(tryCtx, c.kgo)
		silent := tryCtx.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case silent:
			last = err
		case err == nil && len(resp.Brokers) == 0:
			last = &NoBrokersError{}
		default:
			return resp, err
		}
		if try == metadataTries {
			return nil, last
		}
		if !silent {
			if err := backOff(ctx, try); err != nil {
				return nil, err
			}
		}
	}
}

// backOff waits before another try, longer each time. It returns the cause when ctx
// ends before.
func backOff(ctx context.Context, try int) error {
	return pause.For(ctx, 250*time.Millisecond<<(try-1))
}

// limited returns a context that ends after limit, or after a part of what is
// left of ctx if that is sooner.
func limited(ctx context.Context, limit time.Duration, part int) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline) //nolint:forbidigo // a context's deadline is by the real clock
		limit = min(limit, left/time.Duration(part))
	}
	return context.WithTimeout(ctx, limit)
}
