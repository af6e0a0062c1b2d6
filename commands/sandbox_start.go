package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/wire"
)

// localSandbox is a sandbox of this process with its control endpoint.
type localSandbox struct {
	*sandbox.Sandbox
	control *http.Server // nil without
	address string
}

// startSandbox starts what c says. It may return what [sandbox.Start] does.
func startSandbox(ctx context.Context, c SandboxConfig) (Sandbox, error) {
	opts, err := sandboxOptions(c)
	if err != nil {
		return nil, err
	}
	sb, err := sandbox.Start(ctx, opts...)
	if err != nil {
		return nil, sandboxError(err)
	}
	local := &localSandbox{Sandbox: sb}
	if c.Control == "" {
		return local, nil
	}
	if err := local.serveControl(ctx, c.Control); err != nil {
		return nil, cluster.Join(hintf(err, "give another address with --control"), sb.Close())
	}
	return local, nil
}

func sandboxOptions(c SandboxConfig) ([]sandbox.Option, error) {
	dialect, ok := wire.DialectByName(c.Profile)
	if !ok {
		return nil, usagef("--profile %q: want %s", c.Profile, dialectChoice())
	}
	pending, err := sandbox.ParsePendingState(c.PendingState)
	if err != nil {
		return nil, usagef("--pending-state %q: want %s or %s", c.PendingState, pendingPersisted, pendingMemory)
	}
	opts := []sandbox.Option{
		sandbox.WithBrokers(c.Brokers),
		sandbox.WithBasePort(c.Port),
		sandbox.WithDialect(dialect),
		sandbox.WithShareVersion(int16(c.ShareVersion)),
		sandbox.WithPendingState(pending),
		sandbox.WithDataDir(c.DataDir),
		sandbox.WithBrokerConfigs(c.BrokerConfigs),
	}
	if c.Warning != nil {
		opts = append(opts, sandbox.WithWarnings(func(text string) { c.Warning("sandbox: " + text) }))
	}
	for _, t := range c.Topics {
		opts = append(opts, sandbox.WithTopics(sandbox.Topic{Name: t.Name, Partitions: int32(t.Partitions)}))
	}
	if c.AnyAddress {
		host := c.AdvertisedHost
		if host == "" {
			if host, err = os.Hostname(); err != nil {
				return nil, hintf(fmt.Errorf("find out the name of this host: %w", err), "give --advertised-host")
			}
		}
		opts = append(opts, sandbox.WithHost("0.0.0.0"), sandbox.WithAnyAddress(), sandbox.WithAdvertisedHost(host))
	}
	return opts, nil
}

// sandboxError adds what to do next, and tells wrong options from failures.
func sandboxError(err error) error {
	switch {
	case isA[*sandbox.PortError]()(err):
		return hintf(err, "give another --port, or none to take any free one")
	case isA[*sandbox.InUseError]()(err):
		return hintf(err, "stop the sandbox that uses it, or give another --data-dir")
	case isA[*sandbox.MismatchError]()(err):
		return hintf(err, "start it as it was started first, or give another --data-dir")
	case errors.Is(err, os.ErrPermission):
		return hintf(err, "give a --data-dir that this user may write to")
	default:
		return err
	}
}

// controlTimeout bounds how long a client of the control endpoint may take to
// send the header of a request.
const controlTimeout = 10 * time.Second

func (s *localSandbox) serveControl(ctx context.Context, address string) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("control address %s: %w", address, err)
	}
	s.address = l.Addr().String()
	s.control = &http.Server{Handler: s.ControlHandler(), ReadHeaderTimeout: controlTimeout}
	go func() {
		// It ends when Close closes the listener; before that nobody waits.
		_ = s.control.Serve(l)
	}()
	return nil
}

// ControlAddress returns where the control endpoint is, "" without one.
func (s *localSandbox) ControlAddress() string { return s.address }

// Load loads lines, see [sandbox.Sandbox.Load].
func (s *localSandbox) Load(ctx context.Context, topic, name string, r io.Reader) (int64, error) {
	res, err := s.Sandbox.Load(ctx, topic, r, sandbox.LoadOptions{Name: name})
	return res.Records, err
}

// Close ends the control endpoint and the sandbox.
func (s *localSandbox) Close() error {
	var err error
	if s.control != nil {
		err = s.control.Close()
	}
	return cluster.Join(err, s.Sandbox.Close())
}
