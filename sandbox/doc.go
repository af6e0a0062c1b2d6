// Package sandbox is a Kafka cluster in this process that implements share
// groups (KIP-932) and their transactional acknowledgements (KIP-1289), for
// rehearsals, demonstrations and tests. It is not a place for data that matters.
package sandbox
