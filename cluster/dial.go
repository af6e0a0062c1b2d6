package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

// handshakeTimeout bounds a TLS handshake. A listener without TLS may take its
// first bytes for the size of a request and wait for the rest.
const handshakeTimeout = 4 * time.Second

// errHandshakeTimeout is the cause of a handshake that it ended.
var errHandshakeTimeout = errors.New("no TLS handshake in time")

// tlsDialer dials TCP and then speaks TLS.
func tlsDialer(config *tls.Config, timeout time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{Timeout: timeout}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		own := config.Clone()
		if host, _, err := net.SplitHostPort(address); err == nil && own.ServerName == "" {
			own.ServerName = host
		}
		ctx, cancel := context.WithTimeoutCause(ctx, handshakeTimeout, errHandshakeTimeout)
		defer cancel()
		secure := tls.Client(conn, own)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close() // there is another error to tell
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return nil, err
		}
		return secure, nil
	}
}
