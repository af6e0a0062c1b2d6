package commands

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"

	"github.com/kshare/kshare/sandbox"
	"github.com/spf13/pflag"
)

// defaultControl is where the commands look for the control endpoint of a sandbox
// if nothing says where it is.
const defaultControl = "127.0.0.1:9099"

// sandboxControl says where the control endpoint of a running sandbox is.
type sandboxControl struct{ Control string }

func (c *sandboxControl) addTo(fs *pflag.FlagSet) {
	fs.StringVar(&c.Control, "control", "", "control `address` of the sandbox (default KSHARE_SANDBOX_CONTROL or "+defaultControl+")")
}

// resolve fills in the address where no flag gave one.
func (c *sandboxControl) resolve(d *Deps) error {
	c.Control = cmp.Or(c.Control, d.Getenv("KSHARE_SANDBOX_CONTROL"), defaultControl)
	if _, _, err := net.SplitHostPort(c.Control); err != nil {
		return usagef("--control %q: want HOST:PORT, such as %s", withoutUser(c.Control), defaultControl)
	}
	return nil
}

func (c *sandboxControl) client() *controlClient { return &controlClient{address: c.Control} }

// controlClient speaks to the control endpoint of a sandbox, see
// [sandbox.Sandbox.ControlHandler].
type controlClient struct{ address string }

func (c *controlClient) faults(ctx context.Context) ([]sandbox.Fault, error) {
	var list sandbox.FaultList
	err := c.do(ctx, http.MethodGet, "/faults", nil, &list)
	return list.Faults, err
}

func (c *controlClient) state(ctx context.Context) (sandbox.State, error) {
	var state sandbox.State
	err := c.do(ctx, http.MethodGet, "/state", nil, &state)
	return state, err
}

func (c *controlClient) inject(ctx context.Context, f sandbox.Fault) (sandbox.Fault, error) {
	body, err := json.Marshal(f)
	if err != nil {
		return sandbox.Fault{}, fmt.Errorf("fault: %w", err)
	}
	var injected sandbox.Fault
	err = c.do(ctx, http.MethodPost, "/faults", body, &injected)
	return injected, err
}

func (c *controlClient) clear(ctx context.Context, id string) (sandbox.Fault, error) {
	var f sandbox.Fault
	err := c.do(ctx, http.MethodDelete, "/faults/"+url.PathEscape(id), nil, &f)
	return f, err
}

func (c *controlClient) clearAll(ctx context.Context) ([]sandbox.Fault, error) {
	var list sandbox.FaultList
	err := c.do(ctx, http.MethodDelete, "/faults", nil, &list)
	return list.Faults, err
}

// do sends a request and decodes the answer into v. What the sandbox refuses
// because it cannot be is a usage error.
func (c *controlClient) do(ctx context.Context, method, path string, body []byte, v any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.address+path, bytes.NewReader(body))
	if err != nil {
		return usagef("--control %q: want HOST:PORT, such as %s", withoutUser(c.address), defaultControl)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		err = fmt.Errorf("sandbox at %s: %w", c.address, err)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return hintf(err, "start the sandbox with --control, and say where that is with --control or KSHARE_SANDBOX_CONTROL")
		}
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("sandbox at %s: %w", c.address, err)
	}
	if resp.StatusCode < 300 {
		if err := json.Unmarshal(raw, v); err != nil {
			return hintf(fmt.Errorf("sandbox at %s: its answer is no %T: %w", c.address, v, err), "look whether it is the control address of a sandbox of this version")
		}
		return nil
	}
	var e sandbox.ControlError
	if err := json.Unmarshal(raw, &e); err != nil || e.Error == "" {
		return hintf(fmt.Errorf("sandbox at %s: %s", c.address, resp.Status), "look whether it is the control address of a sandbox of this version")
	}
	if resp.StatusCode == http.StatusBadRequest {
		return usagef("%s", e.Error)
	}
	return fmt.Errorf("sandbox at %s: %s", c.address, e.Error)
}
