package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The requests that do not just pass to kfake, but those of transactions: see
// gateway_txn.go.

func (c *gatewayConn) dispatch(r *request, req kmsg.Request) error {
	if isPlaneAPI(r.key) || r.key == c.g.dialect.Key {
		return c.handlePlane(r, req)
	}
	if usesExhaustedEpoch(req) {
		return fmt.Errorf("%s: no producer has that epoch", kmsg.NameForKey(r.key))
	}
	switch req := req.(type) {
	case *kmsg.ApiVersionsRequest:
		return c.respond(r, c.g.versions.respond(req, c.node.id))
	case *kmsg.UpdateFeaturesRequest:
		return c.handleUpdateFeatures(r, req)
	case *kmsg.SASLHandshakeRequest:
		return c.handleSASLHandshake(r, req)
	case *kmsg.SASLAuthenticateRequest:
		return c.handleSASLAuthenticate(r, req)

	case *kmsg.ProduceRequest:
		return c.handleProduce(r, req)
	case *kmsg.FindCoordinatorRequest:
		return c.handleFindCoordinator(r, req)
	case *kmsg.JoinGroupRequest:
		return c.handleJoinGroup(r, req)
	case *kmsg.ListGroupsRequest:
		return c.handleListGroups(r, req)
	case *kmsg.DeleteGroupsRequest:
		return c.handleDeleteGroups(r, req)
	case *kmsg.CreateTopicsRequest:
		return c.handleCreateTopics(r, req)
	case *kmsg.DeleteTopicsRequest:
		return c.handleDeleteTopics(r, req)
	case *kmsg.CreatePartitionsRequest:
		return c.handleCreatePartitions(r, req)
	case *kmsg.DeleteRecordsRequest:
		return c.handleDeleteRecords(r, req)
	case *kmsg.MetadataRequest:
		return c.handleMetadata(r, req)

	case *kmsg.DescribeConfigsRequest:
		return c.handleDescribeConfigs(r, req)
	case *kmsg.IncrementalAlterConfigsRequest:
		return c.handleIncrementalAlterConfigs(r, req)
	case *kmsg.AlterConfigsRequest:
		return c.handleAlterConfigs(r, req)
	case *kmsg.CreateACLsRequest, *kmsg.DeleteACLsRequest:
		return c.passThen(r, c.g.kafka.invalidateACLs)

	case *kmsg.InitProducerIDRequest:
		return c.handleInitProducerID(r, req)
	case *kmsg.EndTxnRequest:
		return c.handleEndTxn(r, req)
	case *kmsg.WriteTxnMarkersRequest:
		return c.handleWriteTxnMarkers(r, req)
	case *kmsg.DescribeProducersRequest:
		return c.handleDescribeProducers(r, req)
	case *kmsg.AddPartitionsToTxnRequest:
		return c.handleAddPartitionsToTxn(r, req)
	case *kmsg.AddOffsetsToTxnRequest:
		return c.handleAddOffsetsToTxn(r, req)
	case *kmsg.TxnOffsetCommitRequest:
		return c.handleTxnOffsetCommit(r, req)
	case *kmsg.DescribeTransactionsRequest:
		return c.handleDescribeTransactions(r, req)
	case *kmsg.ListTransactionsRequest:
		return c.handleListTransactions(r, req)
	}
	return c.pass(r)
}

// passThen passes a request, and calls then before the client has its response.
func (c *gatewayConn) passThen(r *request, then func()) error {
	return c.forward(r.frame, func(response []byte) error {
		then()
		return c.send(response)
	})
}

// answer is passed to exchange to send the response on as it is then.
func (c *gatewayConn) answer(r *request) func(kmsg.Response) error {
	return func(resp kmsg.Response) error { return c.respond(r, resp) }
}

func (c *gatewayConn) authorized(r *request, op kmsg.ACLOperation, resource kmsg.ACLResourceType, name string) bool {
	return c.g.kafka.authorized(c.caller(r), op, resource, name)
}

// Share groups

func (c *gatewayConn) handlePlane(r *request, req kmsg.Request) error {
	if c.g.features.level(wire.FeatureShareVersion) < 1 {
		if resp := shareGroupsDisabled(req); resp != nil {
			return c.respond(r, resp)
		}
	}
	if _, ok := req.(*wire.TxnShareAcknowledgeRequest); ok {
		c.g.features.staging.RLock()
		defer c.g.features.staging.RUnlock()
	}
	resp, err := c.g.plane.handle(c.g.ctx, c.caller(r), req)
	if err != nil {
		return fmt.Errorf("share plane: %w", err)
	}
	return c.respond(r, resp)
}

// shareGroupsDisabled is the answer to a request of share groups while
// share.version is 0; nil for a request that does not depend on it.
func shareGroupsDisabled(req kmsg.Request) kmsg.Response {
	code := kerr.UnsupportedVersion.Code
	resp := req.ResponseKind()
	switch resp := resp.(type) {
	case *kmsg.ShareGroupHeartbeatResponse:
		resp.ErrorCode = code
	case *kmsg.ShareFetchResponse:
		resp.ErrorCode = code
	case *kmsg.ShareAcknowledgeResponse:
		resp.ErrorCode = code
	case *kmsg.AlterShareGroupOffsetsResponse:
		resp.ErrorCode = code
	case *kmsg.DeleteShareGroupOffsetsResponse:
		resp.ErrorCode = code
	case *kmsg.ShareGroupDescribeResponse:
		for _, id := range req.(*kmsg.ShareGroupDescribeRequest).GroupIDs {
			g := kmsg.NewShareGroupDescribeResponseGroup()
			g.GroupID, g.ErrorCode = id, code
			resp.Groups = append(resp.Groups, g)
		}
	case *kmsg.DescribeShareGroupOffsetsResponse:
		for _, rg := range req.(*kmsg.DescribeShareGroupOffsetsRequest).Groups {
			g := kmsg.NewDescribeShareGroupOffsetsResponseGroup()
			g.GroupID, g.ErrorCode = rg.GroupID, code
			resp.Groups = append(resp.Groups, g)
		}
	default:
		return nil
	}
	return resp
}

const shareGroupType = "share"

func (c *gatewayConn) handleListGroups(r *request, req *kmsg.ListGroupsRequest) error {
	return c.exchange(r, req, r.frame, func(resp kmsg.Response) error {
		list := resp.(*kmsg.ListGroupsResponse)
		if list.ErrorCode != 0 || len(req.TypesFilter) > 0 && !containsFold(req.TypesFilter, shareGroupType) {
			return c.respond(r, list)
		}
		for _, g := range c.g.plane.listGroups(c.node.id) {
			if len(req.StatesFilter) > 0 && !containsFold(req.StatesFilter, g.state) {
				continue
			}
			if !c.authorized(r, kmsg.ACLOperationDescribe, kmsg.ACLResourceTypeGroup, g.id) {
				continue
			}
			lg := kmsg.NewListGroupsResponseGroup()
			lg.Group, lg.ProtocolType, lg.GroupState, lg.GroupType = g.id, shareGroupType, g.state, shareGroupType
			list.Groups = append(list.Groups, lg)
		}
		return c.respond(r, list)
	})
}

func containsFold(names []string, name string) bool {
	return slices.ContainsFunc(names, func(s string) bool { return strings.EqualFold(s, name) })
}

// handleJoinGroup refuses the lists of protocols on which no group can agree;
// kfake panics on them.
func (c *gatewayConn) handleJoinGroup(r *request, req *kmsg.JoinGroupRequest) error {
	names := make(map[string]bool, len(req.Protocols))
	for _, p := range req.Protocols {
		names[p.Name] = true
	}
	if len(names) > 0 && len(names) == len(req.Protocols) {
		return c.pass(r)
	}
	resp := req.ResponseKind().(*kmsg.JoinGroupResponse)
	resp.ErrorCode, resp.Generation, resp.MemberID = kerr.InconsistentGroupProtocol.Code, -1, req.MemberID
	return c.respond(r, resp)
}

// handleDeleteGroups deletes the share groups of a request itself and leaves the
// others to kfake.
func (c *gatewayConn) handleDeleteGroups(r *request, req *kmsg.DeleteGroupsRequest) error {
	var own []kmsg.DeleteGroupsResponseGroup
	req.Groups = slices.DeleteFunc(req.Groups, func(id string) bool {
		code, ours := c.deleteShareGroup(r, id)
		if ours {
			g := kmsg.NewDeleteGroupsResponseGroup()
			g.Group, g.ErrorCode = id, code
			own = append(own, g)
		}
		return ours
	})
	return passRest(c, r, req, len(req.Groups) > 0, own == nil, func(resp *kmsg.DeleteGroupsResponse) {
		resp.Groups = append(resp.Groups, own...)
	})
}

func (c *gatewayConn) deleteShareGroup(r *request, id string) (code int16, ours bool) {
	isShare := slices.ContainsFunc(c.g.plane.listGroups(-1), func(g groupListing) bool { return g.id == id })
	switch {
	case !isShare:
		return 0, false
	case !c.authorized(r, kmsg.ACLOperationDelete, kmsg.ACLResourceTypeGroup, id):
		return kerr.GroupAuthorizationFailed.Code, true
	case c.g.kafka.coordinator(id) != c.node.id:
		return kerr.NotCoordinator.Code, true
	}
	return c.g.plane.deleteGroup(c.g.ctx, id)
}

// passRest sends what is left of a request to kfake, adds to the response what
// was decided here, and answers. Nothing left means that kfake is not asked;
// whole means that nothing was taken out.
func passRest[R kmsg.Response](c *gatewayConn, r *request, req kmsg.Request, left, whole bool, add func(R)) error {
	if whole {
		return c.pass(r)
	}
	if !left {
		resp := req.ResponseKind().(R)
		add(resp)
		return c.respond(r, resp)
	}
	return c.exchange(r, req, appendRequest(nil, r, req), func(resp kmsg.Response) error {
		add(resp.(R))
		return c.respond(r, resp)
	})
}

// FindCoordinator: type 2 is the share coordinator, which is the leader of the
// key's partition of __share_group_state; kfake hashes the key as it does
// others.

const (
	coordinatorTypeShare  = 2
	shareCoordinatorSince = 6 // version of FindCoordinator
)

func (c *gatewayConn) handleFindCoordinator(r *request, req *kmsg.FindCoordinatorRequest) error {
	if req.CoordinatorType != coordinatorTypeShare || req.Version < shareCoordinatorSince {
		return c.pass(r)
	}
	resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
	allowed := c.authorized(r, kmsg.ACLOperationClusterAction, kmsg.ACLResourceTypeCluster, clusterResource)
	for _, key := range req.CoordinatorKeys {
		a := kmsg.NewFindCoordinatorResponseCoordinator()
		a.Key, a.NodeID, a.Port = key, -1, -1
		group, topicID, partition, err := wire.ParseShareCoordinatorKey(key)
		switch {
		case !allowed:
			a.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		case err != nil:
			a.ErrorCode, a.ErrorMessage = kerr.InvalidRequest.Code, kmsg.StringPtr(err.Error())
		default:
			c.g.fillCoordinator(&a, group, topicID, partition)
		}
		resp.Coordinators = append(resp.Coordinators, a)
	}
	return c.respond(r, resp)
}

func (g *gateway) fillCoordinator(a *kmsg.FindCoordinatorResponseCoordinator, group string, topicID [16]byte, partition int32) {
	a.ErrorCode = kerr.CoordinatorNotAvailable.Code
	t, ok := g.kafka.topicByName(stateTopic)
	if !ok {
		return
	}
	info, ok := g.kafka.partition(stateTopic, wire.ShareStatePartition(group, topicID, partition, t.partitions))
	if !ok {
		return
	}
	for _, n := range g.kafka.nodes() {
		if n.id == info.leader {
			a.ErrorCode, a.NodeID, a.Host, a.Port = 0, n.id, n.host, n.port
		}
	}
}

// Features

func (c *gatewayConn) handleUpdateFeatures(r *request, req *kmsg.UpdateFeaturesRequest) error {
	if !c.authorized(r, kmsg.ACLOperationAlter, kmsg.ACLResourceTypeCluster, clusterResource) {
		resp := req.ResponseKind().(*kmsg.UpdateFeaturesResponse)
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return c.respond(r, resp)
	}
	return c.respond(r, c.g.features.updateFeatures(req))
}

// Authentication

func (c *gatewayConn) handleSASLHandshake(r *request, req *kmsg.SASLHandshakeRequest) error {
	if !c.sasl.required {
		resp := req.ResponseKind().(*kmsg.SASLHandshakeResponse)
		resp.ErrorCode = kerr.IllegalSaslState.Code
		return c.respond(r, resp)
	}
	return c.exchange(r, req, r.frame, func(resp kmsg.Response) error {
		c.sasl.shakenHands(req, resp.(*kmsg.SASLHandshakeResponse))
		return c.respond(r, resp)
	})
}

// handleSASLAuthenticate answers a failure with its code before the connection
// is closed, as a broker does. kfake only closes it.
func (c *gatewayConn) handleSASLAuthenticate(r *request, req *kmsg.SASLAuthenticateRequest) error {
	if !c.sasl.required {
		resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		resp.ErrorCode = kerr.IllegalSaslState.Code
		return c.respond(r, resp)
	}
	err := errNotAuthenticated
	if c.sasl.claims(req.SASLAuthBytes) {
		err = c.exchange(r, req, r.frame, func(resp kmsg.Response) error {
			c.sasl.answered(resp.(*kmsg.SASLAuthenticateResponse))
			c.known.Store(c.sasl.user != "")
			return c.respond(r, resp)
		})
	}
	if err == nil {
		return nil
	}
	resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
	resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
	resp.ErrorMessage = kmsg.StringPtr("authentication with mechanism " + c.sasl.mechanism + " failed: user name or password is wrong")
	return errors.Join(fmt.Errorf("authenticate %q: %w", c.sasl.claimed, err), c.respond(r, resp))
}

// Produce

// acksLeader asks for a response that acks 0 has none of.
const acksLeader = 1

// handleProduce refuses what a broker refuses and kfake does not: appends to an
// internal topic, and batches that do not hold the records they claim. It also
// refuses what kfake panics on, or loops over: topic IDs that are not known and
// wrong acks, if there are several partitions, and used up epochs. With acks 0 kfake is asked for a response all the same, which says when the records are
// there, and whether the connection is to be closed for an error, as Kafka does.
func (c *gatewayConn) handleProduce(r *request, req *kmsg.ProduceRequest) error {
	c.g.deletion.RLock() // a topic ID that is known stays so
	defer c.g.deletion.RUnlock()
	refused := c.g.refuseProduce(req)
	frame, silent := r.frame, req.Acks == 0
	switch {
	case len(refused) > 0:
		if silent {
			return fmt.Errorf("produce without acks to %s: refused", refused[0].Topic)
		}
		if len(req.Topics) == 0 {
			resp := req.ResponseKind().(*kmsg.ProduceResponse)
			resp.Topics = refused
			return c.respond(r, resp)
		}
		frame = appendRequest(make([]byte, 0, len(r.frame)), r, req)
	case silent:
		req.Acks = acksLeader
		binary.BigEndian.PutUint16(r.body[acksAt(req):], acksLeader)
	}
	return c.forward(frame, func(response []byte) error {
		c.g.appended(req)
		if len(refused) == 0 && !silent {
			return c.send(response)
		}
		resp, err := decodeResponse(req, r.correlation, response)
		if err != nil {
			return fmt.Errorf("produce response from kfake: %w", err)
		}
		produced := resp.(*kmsg.ProduceResponse)
		if silent {
			return produceError(produced)
		}
		produced.Topics = append(produced.Topics, refused...)
		return c.respond(r, produced)
	})
}

// acksAt returns where acks is in the body of a request.
func acksAt(req *kmsg.ProduceRequest) int {
	id := 0
	if req.TransactionID != nil {
		id = len(*req.TransactionID)
	}
	if !req.IsFlexible() {
		return 2 + id
	}
	at := 1 + id
	if req.TransactionID != nil {
		for n := id + 1; n >= 0x80; n >>= 7 {
			at++
		}
	}
	return at
}

func produceError(resp *kmsg.ProduceResponse) error {
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := codeError(p.ErrorCode); err != nil {
				return fmt.Errorf("produce without acks to partition %d of %s: %w", p.Partition, t.Topic, err)
			}
		}
	}
	return nil
}

// appended tells the share plane that there may be new records.
func (g *gateway) appended(req *kmsg.ProduceRequest) {
	for i := range req.Topics {
		t := &req.Topics[i]
		name := t.Topic
		if req.Version >= produceByTopicID {
			info, ok := g.kafka.topicByID(t.TopicID)
			if !ok {
				continue
			}
			name = info.name
		}
		for j := range t.Partitions {
			g.plane.logAppended(name, t.Partitions[j].Partition)
		}
	}
}

// produceByTopicID is the first version of Produce that names topics by ID.
const produceByTopicID = 13

// refuseProduce takes what may not be appended out of req, and returns the
// answers for it.
func (g *gateway) refuseProduce(req *kmsg.ProduceRequest) []kmsg.ProduceResponseTopic {
	var refused []kmsg.ProduceResponseTopic
	for i := range req.Topics {
		t := &req.Topics[i]
		whole := g.refuseTopic(req, t)
		bad := kmsg.NewProduceResponseTopic()
		bad.Topic, bad.TopicID = t.Topic, t.TopicID
		t.Partitions = slices.DeleteFunc(t.Partitions, func(p kmsg.ProduceRequestTopicPartition) bool {
			code := whole
			if code == 0 {
				code = refuseBatch(p.Records)
			}
			if code == 0 {
				code = g.refuseProducer(p.Records, req.Version)
			}
			if code == 0 {
				return false
			}
			bp := kmsg.NewProduceResponseTopicPartition()
			bp.Partition, bp.ErrorCode, bp.BaseOffset = p.Partition, code, -1
			bad.Partitions = append(bad.Partitions, bp)
			return true
		})
		if len(bad.Partitions) > 0 {
			refused = append(refused, bad)
		}
	}
	if len(refused) > 0 {
		req.Topics = slices.DeleteFunc(req.Topics, func(t kmsg.ProduceRequestTopic) bool { return len(t.Partitions) == 0 })
	}
	return refused
}

// refuseTopic returns the code for a topic that nothing may be appended to.
func (g *gateway) refuseTopic(req *kmsg.ProduceRequest, t *kmsg.ProduceRequestTopic) int16 {
	byID := req.Version >= produceByTopicID
	switch {
	case req.Acks < -1 || req.Acks > 1:
		return kerr.InvalidRequiredAcks.Code
	case byID && t.TopicID == g.stateTopicID, !byID && t.Topic == stateTopic:
		return kerr.InvalidTopicException.Code
	case byID:
		if _, ok := g.kafka.topicByID(t.TopicID); !ok {
			return kerr.UnknownTopicID.Code
		}
	}
	return 0
}

// refuseBatch returns the code for a record batch that does not hold the records
// that its header counts, or that kfake must not see the producer epoch of. kfake
// believes the count, even a negative one, and moves the end of the log by it.
// Compressed records are not looked at, and anything that is not a batch of
// magic 2 is left for kfake to refuse.
func refuseBatch(b []byte) int16 {
	const magicAt, attributesAt, lastDeltaAt, epochAt, countAt = 16, 21, 23, 51, 57
	if len(b) < batchHeaderBytes || b[magicAt] != 2 {
		return 0
	}
	if int16(binary.BigEndian.Uint16(b[epochAt:])) >= exhaustedEpoch {
		return kerr.InvalidProducerEpoch.Code
	}
	count := int32(binary.BigEndian.Uint32(b[countAt:]))
	if count < 1 || int32(binary.BigEndian.Uint32(b[lastDeltaAt:])) != count-1 {
		return kerr.InvalidRecord.Code
	}
	if binary.BigEndian.Uint16(b[attributesAt:])&7 != 0 {
		return 0
	}
	records := b[batchHeaderBytes:]
	for ; count > 0; count-- {
		length, n := binary.Varint(records)
		if n <= 0 || length < minRecordBytes || length > int64(len(records)-n) {
			return kerr.InvalidRecord.Code
		}
		records = records[n+int(length):]
	}
	if len(records) > 0 {
		return kerr.InvalidRecord.Code
	}
	return 0
}

// refuseProducer returns the code for a batch of a transaction that nothing can
// be added to.
func (g *gateway) refuseProducer(b []byte, version int16) int16 {
	const attributesAt, idAt, epochAt = 21, 43, 51
	if len(b) < batchHeaderBytes || binary.BigEndian.Uint16(b[attributesAt:])&batchTransactional == 0 {
		return 0
	}
	code := g.txns.blockedCode(int64(binary.BigEndian.Uint64(b[idAt:])), int16(binary.BigEndian.Uint16(b[epochAt:])))
	return abortable(code, version >= 11)
}

// minRecordBytes is the length of a record with nothing in it.
const minRecordBytes = 6
