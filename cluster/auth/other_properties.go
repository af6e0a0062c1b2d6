package auth

import "strings"

// Why keys of Kafka's clients are not used.
const (
	reasonJava     = "is about Java"
	reasonTuning   = "kshare has values of its own"
	reasonProducer = "is for Java producers and consumers"
	reasonMissing  = "is not supported"
	reasonUnknown  = "no such setting is known"
)

// lastReasons are those that are no mistake, in the order in which a warning has
// them after all others.
func lastReasons() []string { return []string{reasonJava, reasonTuning, reasonProducer} }

// reason says why a key is not used.
func (r *propertyReader) reason(key string) string {
	switch known := otherReasons()[key]; {
	case r.reasons[key] != "":
		return r.reasons[key]
	case known != "":
		return known
	case strings.HasPrefix(key, "config.providers."):
		return reasonJava
	}
	return reasonUnknown
}

// otherReasons are the keys that Kafka 4.4's admin client, producer, consumer and
// share consumer know and this package has no use for.
func otherReasons() map[string]string {
	out := make(map[string]string)
	for reason, keys := range map[string]string{
		reasonJava: `security.providers metric.reporters metrics.num.samples metrics.recording.level
			metrics.sample.window.ms enable.metrics.push auto.include.jmx.reporter
			sasl.client.callback.handler.class sasl.login.class sasl.login.callback.handler.class
			sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.ticket.renew.jitter
			sasl.kerberos.ticket.renew.window.factor
			ssl.keymanager.algorithm ssl.trustmanager.algorithm ssl.protocol ssl.provider
			ssl.secure.random.implementation`,
		reasonMissing: `ssl.engine.factory.class sasl.oauthbearer.assertion.algorithm
			sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
			sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
			sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
			sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
			sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file`,
		reasonTuning: `bootstrap.resolve.timeout.ms client.dns.lookup connections.max.idle.ms
			default.api.timeout.ms metadata.cluster.check.enable metadata.max.age.ms
			metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy receive.buffer.bytes
			reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms
			retry.backoff.ms send.buffer.bytes socket.connection.setup.timeout.max.ms
			sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
			sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
			sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
			sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
			sasl.oauthbearer.allow.unverified.audience sasl.oauthbearer.allow.unverified.issuer
			sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
			sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.refresh.ms
			sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
			sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwt.validator.class
			sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name`,
		reasonProducer: `acks batch.size buffer.memory buffer.memory.allocation.strategy client.rack
			compression.gzip.level compression.lz4.level compression.type compression.zstd.level
			delivery.timeout.ms enable.idempotence interceptor.classes key.serializer linger.ms max.block.ms
			max.in.flight.requests.per.connection max.request.size metadata.max.idle.ms
			partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
			partitioner.ignore.keys partitioner.rack.aware transaction.timeout.ms
			transaction.two.phase.commit.enable transactional.id value.serializer
			allow.auto.create.topics auto.commit.interval.ms auto.offset.reset check.crcs enable.auto.commit
			exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id
			group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
			isolation.level key.deserializer max.partition.fetch.bytes max.poll.interval.ms max.poll.records
			partition.assignment.strategy session.timeout.ms share.acknowledgement.mode share.acquire.mode
			value.deserializer`,
	} {
		for key := range strings.FieldsSeq(keys) {
			out[key] = reason
		}
	}
	return out
}
