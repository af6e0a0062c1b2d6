package auth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// OAuth says where the tokens of OAUTHBEARER come from: the first of Token,
// TokenFile, TokenCommand, TokenURL and Unsecured that is set.
type OAuth struct {
	Token        Secret
	TokenFile    string
	TokenCommand []string // run without a shell; it writes the token to stdout

	// TokenURL is the endpoint that gives tokens for the credentials of a client
	// (RFC 6749, section 4.4).
	TokenURL     string
	ClientID     string
	ClientSecret Secret
	Scope        string
	Params       map[string]string // further parameters, such as audience
	// RawBasic sends ClientID and ClientSecret as they are, as Kafka does unless
	// sasl.oauthbearer.header.urlencode is set, and not URL-encoded, as the RFC
	// wants it. It makes a difference for characters such as "+" alone.
	RawBasic bool
	TLS      *TLS          // for TokenURL; nil trusts what the system does
	Timeout  time.Duration // for one request to TokenURL; 0 is 30 s

	// Unsecured makes tokens that are not signed, for tests.
	Unsecured *UnsecuredToken

	// Extensions are sent to the broker with each token (KIP-342).
	Extensions map[string]string
}

// UnsecuredToken is what a token that is not signed says, as Kafka's own
// OAuthBearerUnsecuredLoginCallbackHandler makes them.
type UnsecuredToken struct {
	Claims   map[string]any // without iat and exp
	Lifetime time.Duration  // 0 is an hour
}

// mechanism returns OAUTHBEARER. A token is used for all connections until a
// fifth of its life, or a minute, is left; then the next connection, or the next
// re-authentication of one, gets a new one.
func (o OAuth) mechanism(now func() time.Time) (sasl.Mechanism, error) {
	fetch, err := o.source(now)
	if err != nil {
		return nil, err
	}
	for k, v := range o.Extensions {
		// RFC 7628, section 3.1; the broker would say that the message is invalid.
		if !regexp.MustCompile(`^[A-Za-z]+$`).MatchString(k) || k == "auth" {
			return nil, &ConfigError{Reason: fmt.Sprintf("extension %q of OAUTHBEARER: a name has letters only, and is not auth", k)}
		}
		if strings.ContainsFunc(v, func(r rune) bool { return (r < ' ' || r > '~') && !strings.ContainsRune("\t\r\n", r) }) {
			return nil, &ConfigError{Reason: fmt.Sprintf("extension %q of OAUTHBEARER: its value has characters outside ASCII", k)}
		}
	}
	cache := &tokenCache{fetch: fetch, now: now}
	return oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
		t, err := cache.token(ctx)
		return oauth.Auth{Token: string(t), Extensions: o.Extensions}, err
	}), nil
}

// fetchToken gets a new token, and when it expires; the zero time is unknown.
type fetchToken func(ctx context.Context) (Secret, time.Time, error)

func (o OAuth) source(now func() time.Time) (fetchToken, error) {
	switch {
	case o.Token != "":
		return func(context.Context) (Secret, time.Time, error) { return o.Token, jwtExpiry(o.Token), nil }, nil
	case o.TokenFile != "":
		return func(context.Context) (Secret, time.Time, error) {
			t, err := ReadSecretFile(o.TokenFile)
			t = Secret(strings.TrimSpace(string(t)))
			return t, jwtExpiry(t), err
		}, nil
	case len(o.TokenCommand) > 0:
		return func(ctx context.Context) (Secret, time.Time, error) {
			t, err := CommandSecret(ctx, o.TokenCommand)
			t = Secret(strings.TrimSpace(string(t)))
			return t, jwtExpiry(t), err
		}, nil
	case o.TokenURL != "":
		return o.endpoint(now)
	case o.Unsecured != nil:
		return func(context.Context) (Secret, time.Time, error) { return o.Unsecured.token(now()) }, nil
	}
	return nil, (&ConfigError{Reason: "SASL OAUTHBEARER needs a token, and no source of one is set"}).
		advise("set sasl_token_file, sasl_token_command or sasl_oauth_token_url")
}

// endpoint asks TokenURL for tokens.
func (o OAuth) endpoint(now func() time.Time) (fetchToken, error) {
	u, err := url.Parse(o.TokenURL)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return nil, &ConfigError{Reason: "the URL of the token endpoint is no http or https URL"}
	}
	if u.User != nil {
		return nil, (&ConfigError{Reason: "the URL of the token endpoint has a user in it"}).
			advise("set sasl_oauth_client_id and sasl_oauth_client_secret_file in place of that")
	}
	if o.ClientID == "" || o.ClientSecret == "" {
		return nil, (&ConfigError{Reason: "the token endpoint needs the ID and the secret of a client"}).
			advise("set sasl_oauth_client_id, and sasl_oauth_client_secret_file or sasl_oauth_client_secret_command")
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true}
	if o.TLS != nil {
		if transport.TLSClientConfig, err = o.TLS.Config(); err != nil {
			return nil, err
		}
	}
	client := &http.Client{Transport: transport}
	if o.RawBasic {
		client.Transport = rawBasic{transport, o.ClientID, o.ClientSecret}
	}
	config := clientcredentials.Config{
		ClientID: o.ClientID, ClientSecret: string(o.ClientSecret), TokenURL: o.TokenURL,
		AuthStyle: oauth2.AuthStyleInHeader, EndpointParams: make(url.Values),
	}
	if o.Scope != "" {
		config.Scopes = []string{o.Scope}
	}
	for k, v := range o.Params {
		config.EndpointParams.Set(k, v)
	}
	return func(ctx context.Context) (Secret, time.Time, error) {
		ctx, cancel := bounded(ctx, o.Timeout)
		defer cancel()
		defer transport.CloseIdleConnections()
		t, err := config.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
		if err != nil {
			return "", time.Time{}, o.endpointError(ctx, err)
		}
		return Secret(t.AccessToken), tokenExpiry(t, now()), nil
	}, nil
}

// tokenExpiry is when a token of an endpoint expires, as the endpoint says, or
// the token itself; the zero time if neither does.
func tokenExpiry(t *oauth2.Token, now time.Time) time.Time {
	if s, ok := t.Extra("expires_in").(float64); ok && s > 0 {
		return now.Add(time.Duration(min(s, maxTokenLife.Seconds())) * time.Second)
	}
	return jwtExpiry(Secret(t.AccessToken))
}

// maxTokenLife bounds what is believed of a token.
const maxTokenLife = 365 * 24 * time.Hour

// endpointError says what the endpoint answered, in a line and without anything
// that may be a secret.
func (o OAuth) endpointError(ctx context.Context, err error) error {
	e := &CredentialError{What: "token of " + RedactURL(o.TokenURL), Advice: "check the URL, the ID and the secret of the client, and the scope"}
	answer, answered := errors.AsType[*oauth2.RetrieveError](err)
	failed, ok := errors.AsType[*url.Error](err)
	switch {
	case answered:
		text := "the endpoint answers " + answer.Response.Status
		for _, s := range []string{answer.ErrorCode, answer.ErrorDescription} {
			if s != "" {
				text += ": " + s
			}
		}
		e.Err = errors.New(strings.ReplaceAll(text, string(o.ClientSecret), redacted))
	case ctx.Err() != nil:
		e.Err = context.Cause(ctx)
	case ok:
		e.Err = failed.Err // its text has the URL
		e.Advice = "check the URL, and that the endpoint can be reached from here"
	default:
		e.Err = errors.New("the endpoint's answer has no access token")
	}
	return e
}

// rawBasic replaces what the library makes of the credentials.
type rawBasic struct {
	next   http.RoundTripper
	id     string
	secret Secret
}

// RoundTrip sends r with the credentials.
func (t rawBasic) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.SetBasicAuth(t.id, string(t.secret))
	return t.next.RoundTrip(r)
}

// tokenCache keeps a token until it is soon to expire.
type tokenCache struct {
	fetch fetchToken
	now   func() time.Time

	mu      sync.Mutex
	current Secret
	until   time.Time // when to get another one
}

// Where a token does not say when it expires, it is taken to be good for this
// long: connections that are opened together share it.
const unknownLifetime = time.Minute

// refreshMargin is the most that is left of a token's life when it is replaced.
const refreshMargin = time.Minute

func (c *tokenCache) token(ctx context.Context) (Secret, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); c.current != "" && now.Before(c.until) {
		return c.current, nil
	}
	t, expiry, err := c.fetch(ctx)
	if err != nil {
		return "", err
	}
	if t == "" {
		return "", &CredentialError{What: "token of OAUTHBEARER", Err: errors.New("it is empty")}
	}
	now := c.now()
	switch {
	case expiry.IsZero():
		c.until = now.Add(unknownLifetime)
	case !expiry.After(now):
		return "", &CredentialError{
			What: "token of OAUTHBEARER", Err: fmt.Errorf("it expired at %s", expiry.UTC().Format(time.RFC3339)),
			Advice: "get a new one; this machine's clock may be wrong too",
		}
	default:
		c.until = expiry.Add(-min(refreshMargin, expiry.Sub(now)/5))
	}
	c.current = t
	return t, nil
}

// jwtExpiry returns the time in the claim exp of a JWT; the zero time if there
// is none. Nothing is verified: that is the broker's part.
func jwtExpiry(t Secret) time.Time {
	parts := strings.Split(string(t), ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	if err != nil {
		return time.Time{}
	}
	var claims struct {
		Exp float64 `json:"exp"`
	}
	if json.Unmarshal(b, &claims) != nil || claims.Exp <= 0 || claims.Exp > 1e11 {
		return time.Time{}
	}
	return time.UnixMilli(int64(claims.Exp * 1000))
}

// token makes a token.
func (u *UnsecuredToken) token(now time.Time) (Secret, time.Time, error) {
	lifetime := u.Lifetime
	if lifetime == 0 {
		lifetime = time.Hour
	}
	claims := map[string]any{
		"iat": float64(now.UnixMilli()) / 1000,
		"exp": float64(now.Add(lifetime).UnixMilli()) / 1000,
	}
	for k, v := range u.Claims {
		claims[k] = v
	}
	b, err := json.Marshal(claims)
	if err != nil {
		return "", time.Time{}, &ConfigError{Reason: "claims of an unsecured token", Err: err}
	}
	encode := base64.RawURLEncoding.EncodeToString
	return Secret(encode([]byte(`{"alg":"none"}`)) + "." + encode(b) + "."), now.Add(lifetime), nil
}
