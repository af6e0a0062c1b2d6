package sandbox

import (
	"bytes"
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// The SASL mechanisms that kfake serves.
const (
	saslPlain    = "PLAIN"
	saslScram256 = "SCRAM-SHA-256"
	saslScram512 = "SCRAM-SHA-512"
)

// internalUser is who the sandbox's own connections authenticate as. Its
// password is random.
const internalUser = "kshare-sandbox"

// anonymous is the principal of a connection without SASL.
const anonymous = "User:ANONYMOUS"

// clusterResource is the one name of a CLUSTER resource.
const clusterResource = "kafka-cluster"

// authorizer decides from kfake's access control lists what a client may do, in
// the requests that kfake does not see. The lists are kept until a request that
// changes them has passed the gateway.
type authorizer struct {
	enabled bool
	super   map[string]bool // by principal
	load    func(ctx context.Context) ([]ACL, error)

	mu     sync.Mutex
	gen    uint64
	loaded bool
	acls   []ACL
}

func (a *authorizer) invalidate() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gen++
	a.loaded, a.acls = false, nil
}

// lists returns the access control lists; false when they cannot be read.
func (a *authorizer) lists() ([]ACL, bool) {
	a.mu.Lock()
	acls, loaded, gen := a.acls, a.loaded, a.gen
	a.mu.Unlock()
	if loaded {
		return acls, true
	}
	ctx, cancel := context.WithTimeout(context.Background(), configTimeout)
	defer cancel()
	acls, err := a.load(ctx)
	if err != nil {
		return nil, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gen == gen {
		a.loaded, a.acls = true, acls
	}
	return acls, true
}

func (a *authorizer) authorized(principal, host string, op kmsg.ACLOperation, resource kmsg.ACLResourceType, name string) bool {
	if !a.enabled || a.super[principal] {
		return true
	}
	acls, ok := a.lists()
	return ok && authorizedBy(acls, principal, host, op, resource, name)
}

// authorizedBy is Kafka's rule: a list that denies wins, and what no list
// allows is denied.
func authorizedBy(acls []ACL, principal, host string, op kmsg.ACLOperation, resource kmsg.ACLResourceType, name string) bool {
	allowed := false
	for i := range acls {
		l := &acls[i]
		if !l.covers(principal, host, resource, name) || !l.grants(op) {
			continue
		}
		if l.Deny {
			return false
		}
		allowed = true
	}
	return allowed
}

func (l *ACL) covers(principal, host string, resource kmsg.ACLResourceType, name string) bool {
	if l.Resource != resource || l.Principal != principal && l.Principal != "User:*" {
		return false
	}
	if l.Host != host && l.Host != "*" && l.Host != "" {
		return false
	}
	switch l.Pattern {
	case kmsg.ACLResourcePatternTypePrefixed:
		return strings.HasPrefix(name, l.Name)
	case kmsg.ACLResourcePatternTypeLiteral:
		return l.Name == name || l.Name == "*"
	}
	return false
}

// grants reports whether l speaks of op. An operation that is allowed implies
// the right to see what it acts on; one that is denied implies nothing.
func (l *ACL) grants(op kmsg.ACLOperation) bool {
	if l.Operation == op || l.Operation == kmsg.ACLOperationAll {
		return true
	}
	if l.Deny {
		return false
	}
	switch op {
	case kmsg.ACLOperationDescribe:
		switch l.Operation {
		case kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationDelete, kmsg.ACLOperationAlter:
			return true
		}
	case kmsg.ACLOperationDescribeConfigs:
		return l.Operation == kmsg.ACLOperationAlterConfigs
	}
	return false
}

// describeACLs reads all access control lists of kfake.
func (b *backend) describeACLs(ctx context.Context) ([]ACL, error) {
	req := kmsg.NewPtrDescribeACLsRequest()
	req.Version = 3
	req.ResourceType = kmsg.ACLResourceTypeAny
	req.ResourcePatternType = kmsg.ACLResourcePatternTypeAny
	req.Operation = kmsg.ACLOperationAny
	req.PermissionType = kmsg.ACLPermissionTypeAny
	resp, err := call[*kmsg.DescribeACLsResponse](ctx, b.client, 0, req)
	if err != nil {
		return nil, err
	}
	if err := codeError(resp.ErrorCode); err != nil {
		return nil, err
	}
	var acls []ACL
	for _, r := range resp.Resources {
		for _, a := range r.ACLs {
			acls = append(acls, ACL{
				Principal: a.Principal, Host: a.Host,
				Resource: r.ResourceType, Name: r.ResourceName, Pattern: r.ResourcePatternType,
				Operation: a.Operation, Deny: a.PermissionType == kmsg.ACLPermissionTypeDeny,
			})
		}
	}
	return acls, nil
}

// createACLs adds access control lists to kfake's; it has no list twice.
func (b *backend) createACLs(ctx context.Context, acls []ACL) error {
	req := kmsg.NewPtrCreateACLsRequest()
	req.Version = 3
	for _, l := range acls {
		c := kmsg.NewCreateACLsRequestCreation()
		c.ResourceType, c.ResourceName, c.ResourcePatternType = l.Resource, l.Name, l.Pattern
		if c.ResourcePatternType == kmsg.ACLResourcePatternTypeUnknown {
			c.ResourcePatternType = kmsg.ACLResourcePatternTypeLiteral
		}
		c.Principal, c.Host, c.Operation = l.Principal, l.Host, l.Operation
		if c.Host == "" {
			c.Host = "*"
		}
		c.PermissionType = kmsg.ACLPermissionTypeAllow
		if l.Deny {
			c.PermissionType = kmsg.ACLPermissionTypeDeny
		}
		req.Creations = append(req.Creations, c)
	}
	resp, err := call[*kmsg.CreateACLsResponse](ctx, b.client, b.controller(), req)
	if err != nil {
		return err
	}
	for _, r := range resp.Results {
		if err := codeError(r.ErrorCode); err != nil {
			return err
		}
	}
	return nil
}

// scramIterations is what kfake names to clients, whatever a user was made with.
const scramIterations = 4096

// putSCRAMUsers makes the SCRAM users of this run known to a kfake that has
// loaded those of an earlier one.
func (b *backend) putSCRAMUsers(ctx context.Context, users []User) error {
	req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
	for _, u := range users {
		up := kmsg.NewAlterUserSCRAMCredentialsRequestUpsertion()
		up.Name, up.Iterations, up.Salt = u.Name, scramIterations, []byte(randomText(16))
		var err error
		switch u.Mechanism {
		case saslScram256:
			up.Mechanism = 1
			up.SaltedPassword, err = pbkdf2.Key(sha256.New, u.Password, up.Salt, scramIterations, sha256.Size)
		case saslScram512:
			up.Mechanism = 2
			up.SaltedPassword, err = pbkdf2.Key(sha512.New, u.Password, up.Salt, scramIterations, sha512.Size)
		default:
			continue
		}
		if err != nil {
			return fmt.Errorf("user %q: %w", u.Name, err)
		}
		req.Upsertions = append(req.Upsertions, up)
	}
	if len(req.Upsertions) == 0 {
		return nil
	}
	resp, err := call[*kmsg.AlterUserSCRAMCredentialsResponse](ctx, b.client, b.controller(), req)
	if err != nil {
		return fmt.Errorf("create SCRAM users: %w", err)
	}
	for _, r := range resp.Results {
		if err := codeError(r.ErrorCode); err != nil {
			return fmt.Errorf("create SCRAM user %q: %w", r.User, err)
		}
	}
	return nil
}

// saslSession follows the authentication of one connection as its requests and
// responses pass the gateway, to learn who the client is.
type saslSession struct {
	required  bool
	mechanism string
	claimed   string // who the client says it is
	user      string // who it has proved to be
}

// allows reports whether a request with that key may be sent at this stage.
func (s *saslSession) allows(key int16) bool {
	if !s.required || s.user != "" {
		return true
	}
	switch kmsg.Key(key) {
	case kmsg.ApiVersions, kmsg.SASLHandshake, kmsg.SASLAuthenticate:
		return true
	}
	return false
}

func (s *saslSession) principal() string {
	if s.user == "" {
		return anonymous
	}
	return "User:" + s.user
}

func (s *saslSession) shakenHands(req *kmsg.SASLHandshakeRequest, resp *kmsg.SASLHandshakeResponse) {
	if resp.ErrorCode == 0 {
		s.mechanism, s.claimed = req.Mechanism, ""
	}
}

// claims notes what one SaslAuthenticate says. It returns false for what no
// mechanism allows: kfake takes an unknown user with no password for known.
func (s *saslSession) claims(auth []byte) bool {
	switch s.mechanism {
	case saslPlain:
		parts := bytes.SplitN(auth, []byte{0}, 3)
		if len(parts) != 3 || len(parts[1]) == 0 || len(parts[2]) == 0 {
			return false
		}
		s.claimed = string(parts[1])
	case saslScram256, saslScram512:
		if user, ok := scramUser(auth); ok {
			s.claimed = user
		}
	}
	return true
}

// scramUser returns the user name of a client-first-message (RFC 5802).
func scramUser(msg []byte) (string, bool) {
	fields := strings.Split(string(msg), ",")
	i := slices.IndexFunc(fields, func(f string) bool { return strings.HasPrefix(f, "n=") })
	if i < 2 { // the first two are the GS2 header
		return "", false
	}
	return strings.NewReplacer("=2C", ",", "=3D", "=").Replace(fields[i][len("n="):]), true
}

// answered notes what the broker said to a SaslAuthenticate.
func (s *saslSession) answered(resp *kmsg.SASLAuthenticateResponse) {
	if resp.ErrorCode != 0 {
		return
	}
	// SCRAM takes two rounds; the last message of the broker proves that it
	// knew the password too, and starts with "v=".
	if s.mechanism == saslPlain || bytes.HasPrefix(resp.SASLAuthBytes, []byte("v=")) {
		s.user = s.claimed
	}
}
