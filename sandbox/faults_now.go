package sandbox

import (
	"context"
	"fmt"
	"slices"
)

// Momentary faults: they have happened when they are injected.

// checkFaultTarget refuses faults in what the sandbox does not have.
func (s *Sandbox) checkFaultTarget(f *Fault) error {
	refuse := func(format string, args ...any) error {
		return &FaultError{Kind: f.Kind, Reason: fmt.Sprintf(format, args...)}
	}
	for _, b := range []*int32{f.Broker, f.ToBroker} {
		if b != nil && (*b < 0 || int(*b) >= len(s.gateway.nodes)) {
			return refuse("there is no broker %d", *b)
		}
	}
	if f.StatePartition != nil {
		if _, ok := s.kafka.partition(stateTopic, *f.StatePartition); !ok {
			return refuse("there is no partition %d of %s", *f.StatePartition, stateTopic)
		}
	}
	if f.Topic != "" {
		t, ok := s.kafka.topicByName(f.Topic)
		switch {
		case !ok:
			return refuse("there is no topic %q", f.Topic)
		case f.Partition != nil && (*f.Partition < 0 || *f.Partition >= t.partitions):
			return refuse("topic %q has no partition %d", f.Topic, *f.Partition)
		}
	}
	if f.APIKey != nil {
		req := s.gateway.newRequest(*f.APIKey)
		switch {
		case req == nil:
			return refuse("api key %d is not served", *f.APIKey)
		case f.Kind == FaultAnswerError && !answersWithErrors(req):
			return refuse("no answer to api key %d has an error", *f.APIKey)
		}
	}
	if f.Kind == FaultForgetTransaction {
		if _, known := s.txns.get(f.TransactionalID); !known {
			return refuse("there is no transactional ID %q", f.TransactionalID)
		}
	}
	return nil
}

// strikeNow lets a momentary fault strike.
func (s *Sandbox) strikeNow(_ context.Context, f *Fault) error {
	which := leadSelector{group: f.GroupID, topic: f.Topic, partition: f.Partition}
	switch f.Kind {
	case FaultCrashLeader:
		s.plane.crashLeaders(which)
	case FaultExpireLocks:
		s.plane.expireLocksOf(which)
	case FaultMoveLeader:
		return s.moveLeader(f.Topic, *f.Partition, *f.ToBroker)
	case FaultMoveCoordinator:
		if f.Coordinator == CoordinatorShare {
			return s.moveLeader(stateTopic, *f.StatePartition, *f.ToBroker)
		}
		s.cluster.RehashCoordinators()
	case FaultRestartBroker:
		s.plane.crashLeaders(leadSelector{broker: f.Broker})
		s.gateway.disconnect(*f.Broker)
	default:
		return &FaultError{Kind: f.Kind, Reason: "is not momentary"}
	}
	return nil
}

// moveLeader moves a partition. The share-partitions of the former leader are
// lost at once, and not only when somebody asks the new one.
func (s *Sandbox) moveLeader(topic string, partition, to int32) error {
	if err := s.cluster.MoveTopicPartition(topic, partition, to); err != nil {
		return fmt.Errorf("move %s-%d to broker %d: %w", topic, partition, to, err)
	}
	s.plane.crashLeaders(leadSelector{topic: topic, partition: &partition})
	return nil
}

// disconnect closes all connections of a broker, and returns when their sessions
// are gone.
func (g *gateway) disconnect(broker int32) {
	g.mu.Lock()
	var gone []*gatewayConn
	for c := range g.conns {
		if c.node.id == broker {
			gone = append(gone, c)
		}
	}
	g.mu.Unlock()
	for _, c := range gone {
		c.abort()
		<-c.ended
	}
}

// raiseLeaderEpochs makes the leader epochs of kfake those that share-partitions
// have met: kfake forgets them when it is killed, and those of empty partitions
// always. A leader below the epoch that the share coordinator knows is fenced.
func (s *Sandbox) raiseLeaderEpochs(co *shareCoordinator) error {
	for _, k := range co.keys() {
		st, _ := co.get(k)
		topic, ok := s.kafka.topicByID(k.topicID)
		if !ok {
			continue
		}
		info, ok := s.kafka.partition(topic.name, k.partition)
		for ; ok && info.leaderEpoch < st.leaderEpoch; info.leaderEpoch++ {
			if err := s.cluster.MoveTopicPartition(topic.name, k.partition, info.leader); err != nil {
				return fmt.Errorf("raise the leader epoch of %s-%d: %w", topic.name, k.partition, err)
			}
		}
	}
	return nil
}

// leadSelector selects share-partitions; what is not set selects all.
type leadSelector struct {
	group, topic string
	partition    *int32
	broker       *int32 // that leads
}

// leadsOf returns the loaded share-partitions that are selected, in the order of
// their keys.
func (p *plane) leadsOf(which leadSelector) []*leaderPartition {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*leaderPartition
	for _, lp := range p.leads {
		if (which.group == "" || lp.key.group == which.group) && (which.topic == "" || lp.topic == which.topic) &&
			(which.partition == nil || lp.key.partition == *which.partition) && (which.broker == nil || lp.leader == *which.broker) {
			out = append(out, lp)
		}
	}
	slices.SortFunc(out, func(a, b *leaderPartition) int { return compareStateKeys(a.key, b.key) })
	return out
}

// crashLeaders makes leaders lose what they hold in memory, as a broker that
// restarts does: ACQUIRED records are AVAILABLE again, and TX_PENDING ones too
// unless they are persisted.
func (p *plane) crashLeaders(which leadSelector) {
	for _, lp := range p.leadsOf(which) {
		p.retire(lp)
	}
}

// expireLocksOf makes acquisition locks run out.
func (p *plane) expireLocksOf(which leadSelector) {
	for _, lp := range p.leadsOf(which) {
		<-lp.ready
		if lp.code == 0 {
			p.expireLocks(lp, p.cfg.now().Add(longestLock))
		}
	}
}
