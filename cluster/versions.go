package cluster

import (
	"context"
	"slices"
	"sync"

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

// apiVersionsWithZeroMin is the first ApiVersions version that lists features
// whose minimum level is 0.
const apiVersionsWithZeroMin = 4

// What brokers are told of the software that asks.
const (
	softwareName    = "kshare"
	softwareVersion = "1"
)

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

// BrokerVersions asks every broker in the metadata for its ApiVersions, all at
// once. The result is sorted by node ID and has one entry for each broker; a
// broker that does not answer within the context has Err set.
func (c *Client) BrokerVersions(ctx context.Context) ([]BrokerVersions, error) {
	brokers, err := c.brokers(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]BrokerVersions, len(brokers))
	var wg sync.WaitGroup
	for i, b := range brokers {
		wg.Go(func() {
			v, err := c.askVersions(ctx, b.NodeID)
			v.NodeID, v.Host, v.Port, v.Err = b.NodeID, b.Host, b.Port, err
			out[i] = v
		})
	}
	wg.Wait()
	return out, nil
}

func (c *Client) askVersions(ctx context.Context, node int32) (BrokerVersions, error) {
	req := kmsg.NewPtrApiVersionsRequest()
	// A broker refuses v3 and later without both (KIP-511).
	req.ClientSoftwareName, req.ClientSoftwareVersion = softwareName, softwareVersion
	kresp, err := c.kgo.Broker(int(node)).RetriableRequest(ctx, req)
	if err != nil {
		return BrokerVersions{}, &Error{Op: "read ApiVersions", Broker: node, Err: err}
	}
	resp := kresp.(*kmsg.ApiVersionsResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return BrokerVersions{}, &Error{Op: "read ApiVersions", Broker: node, Err: err}
	}
	return newBrokerVersions(resp), nil
}

func (c *Client) brokers(ctx context.Context) ([]kmsg.MetadataResponseBroker, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	resp, err := req.RequestWith(ctx, c.kgo)
	if err != nil {
		return nil, classify(err, c.cfg.BootstrapServers)
	}
	slices.SortFunc(resp.Brokers, func(a, b kmsg.MetadataResponseBroker) int { return int(a.NodeID) - int(b.NodeID) })
	return resp.Brokers, nil
}
