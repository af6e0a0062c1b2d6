package wire

import (
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
)

// topicIDLen is the length of a topic ID in text: 16 bytes in base64 without
// padding, as Kafka prints every UUID.
const topicIDLen = 22

// ShareCoordinatorKey returns the key by which a share coordinator is found for
// a share-partition (FindCoordinator with key type 2): group, topic ID and
// partition, joined by colons.
func ShareCoordinatorKey(group string, topicID [16]byte, partition int32) string {
	b := make([]byte, 0, len(group)+topicIDLen+len("::-2147483648"))
	b = append(b, group...)
	return string(appendKeyTail(b, topicID, partition))
}

// appendKeyTail appends what follows the group ID in a key.
func appendKeyTail(b []byte, topicID [16]byte, partition int32) []byte {
	b = append(b, ':')
	b = base64.RawURLEncoding.AppendEncode(b, topicID[:])
	b = append(b, ':')
	return strconv.AppendInt(b, int64(partition), 10)
}

// ParseShareCoordinatorKey is the inverse of [ShareCoordinatorKey]. A group ID
// may itself contain colons. The error says what is wrong with key; keys that
// ShareCoordinatorKey would spell differently, have no group ID or a negative
// partition are wrong.
func ParseShareCoordinatorKey(key string) (group string, topicID [16]byte, partition int32, err error) {
	rest, number, ok1 := cutLast(key)
	group, id, ok2 := cutLast(rest)
	if !ok1 || !ok2 || group == "" {
		return "", [16]byte{}, 0, fmt.Errorf("share coordinator key %q: not of the form group:topicId:partition", key)
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(id)
	// The decoder skips line breaks, so the length of the text counts as well.
	if err != nil || len(raw) != len(topicID) || len(id) != topicIDLen {
		return "", [16]byte{}, 0, fmt.Errorf("share coordinator key %q: invalid topic ID %q", key, id)
	}
	n, err := strconv.ParseUint(number, 10, 31)
	if err != nil || strconv.FormatUint(n, 10) != number {
		return "", [16]byte{}, 0, fmt.Errorf("share coordinator key %q: invalid partition %q", key, number)
	}
	return group, [16]byte(raw), int32(n), nil
}

func cutLast(s string) (before, after string, found bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// ShareStatePartition returns which of the partitions of __share_group_state
// holds the state of a share-partition: the hash of [ShareCoordinatorKey],
// which is Java's String.hashCode, modulo the number of partitions. It returns
// -1 if partitions is less than 1.
func ShareStatePartition(group string, topicID [16]byte, partition, partitions int32) int32 {
	if partitions < 1 {
		return -1
	}
	h := javaHash(0, group)
	var buf [topicIDLen + len("::-2147483648")]byte
	for _, c := range appendKeyTail(buf[:0], topicID, partition) {
		h = 31*h + int32(c)
	}
	if h == math.MinInt32 {
		h = 0 // Kafka's abs: the one value that has no positive counterpart
	}
	return max(h, -h) % partitions
}

// javaHash continues String.hashCode from h over s, which is over UTF-16 code
// units: a character outside of the basic plane counts as two.
func javaHash(h int32, s string) int32 {
	for _, c := range s {
		if hi, lo := utf16.EncodeRune(c); hi != '\uFFFD' {
			h = 31*h + hi
			c = lo
		}
		h = 31*h + c
	}
	return h
}
