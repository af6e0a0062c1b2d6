package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/promtext"
)

// maxPageBytes is how much is read of an answer. A broker with 30,000
// share-partitions has 150 MB to tell.
const maxPageBytes = 512 << 20

// metricsReader asks endpoints.
type metricsReader struct {
	client *http.Client
	index  *metricIndex
	limit  int64 // bytes of an answer
	// timeout is how long an endpoint may take.
	timeout time.Duration
}

// ask reads one endpoint; broker is what a broker is called that it does not name.
func (s *metricsReader) ask(ctx context.Context, e MetricsEndpoint, broker string) endpointAnswer {
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("no answer within %s", s.timeout))
	defer cancel()
	sums := newMetricSums(s.index, broker)
	var err error
	if e.Kind == EndpointJolokia {
		err = s.readJolokia(ctx, e, sums)
	} else {
		err = s.readPage(ctx, e, sums)
	}
	if err != nil {
		// Half of a page is not what the broker says.
		return endpointAnswer{err: plainError(ctx, err)}
	}
	return sums.answer()
}

// plainError drops what the reader of a report knows: the URL, and that a timeout
// is a deadline.
func plainError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// fetch sends a request and returns the body of its answer, which the caller
// closes.
func (s *metricsReader) fetch(req *http.Request) (*page, error) {
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		err := fmt.Errorf("HTTP status %s", resp.Status)
		if resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden {
			return nil, &cluster.AuthError{Err: err, Advice: "check the user and the password in the URL"}
		}
		return nil, err
	}
	return &page{body: resp.Body, limit: s.limit, contentType: resp.Header.Get("Content-Type")}, nil
}

// page is the body of an answer, up to a limit.
type page struct {
	body        io.ReadCloser
	limit, read int64
	contentType string
}

// Read implements [io.Reader].
func (p *page) Read(b []byte) (int, error) {
	n, err := p.body.Read(b)
	if p.read += int64(n); p.read > p.limit {
		return 0, fmt.Errorf("the answer is longer than %d MiB", p.limit>>20)
	}
	return n, err
}

// Close implements [io.Closer].
func (p *page) Close() error { return p.body.Close() }

// readPage reads the text format of Prometheus.
func (s *metricsReader) readPage(ctx context.Context, e MetricsEndpoint, sums *metricSums) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4, */*;q=0.1")
	body, err := s.fetch(req)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // was only read
	if t, _, _ := mime.ParseMediaType(body.contentType); t != "" && !slices.Contains([]string{"text/plain", "application/openmetrics-text"}, t) {
		return fmt.Errorf("the answer is %s, not metrics in the text format of Prometheus", t)
	}
	samples := false
	err = promtext.Parse(body, func(name []byte) bool {
		samples = true
		return s.index.wanted(name)
	}, func(x promtext.Sample) {
		if series, ok := s.index.series(x); ok {
			sums.add(series)
		}
	})
	if bad, ok := errors.AsType[*promtext.SyntaxError](err); ok {
		return fmt.Errorf("the answer is not in the text format of Prometheus: %w", bad)
	}
	if err == nil && !samples {
		return errors.New("the answer has no metrics")
	}
	return err
}

// Jolokia: bulk reads by POST
//
// One read for each MBean, with a pattern, so that the answer is always a map of
// MBeans. What a broker does not have is status 404, and what the agent may not
// tell is 403.

// jolokiaRead is one request.
type jolokiaRead struct {
	Type      string   `json:"type"`
	MBean     string   `json:"mbean"`
	Attribute []string `json:"attribute"`
}

// jolokiaAnswer is the answer to one request.
type jolokiaAnswer struct {
	Status int                                   `json:"status"`
	Error  string                                `json:"error"`
	Value  map[string]map[string]json.RawMessage `json:"value"` // by MBean, then attribute
}

func (s *metricsReader) readJolokia(ctx context.Context, e MetricsEndpoint, sums *metricSums) error {
	reads := jolokiaReads(s.index.metrics)
	b, err := json.Marshal(reads)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL.String(), bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	body, err := s.fetch(req)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // was only read
	var answers []jolokiaAnswer
	if err := json.NewDecoder(body).Decode(&answers); err != nil {
		if _, ok := errors.AsType[*json.SyntaxError](err); ok || isA[*json.UnmarshalTypeError](err) {
			return fmt.Errorf("the answer is not Jolokia's: %w", err)
		}
		return err
	}
	if len(answers) != len(reads) {
		return fmt.Errorf("%d answers to %d reads", len(answers), len(reads))
	}
	for i, a := range answers {
		switch a.Status {
		case http.StatusOK:
		case http.StatusNotFound:
			continue
		default:
			return fmt.Errorf("read %s: status %d: %s", reads[i].MBean, a.Status, a.Error)
		}
		for bean, attributes := range a.Value {
			if err := s.addMBean(sums, bean, attributes); err != nil {
				return err
			}
		}
	}
	return nil
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// jolokiaReads returns one read for each MBean.
func jolokiaReads(metrics []Metric) []jolokiaRead {
	var out []jolokiaRead
	for _, m := range metrics {
		pattern := m.MBean() + ",*"
		at := slices.IndexFunc(out, func(r jolokiaRead) bool { return r.MBean == pattern })
		if at < 0 {
			at = len(out)
			out = append(out, jolokiaRead{Type: "read", MBean: pattern})
		}
		for _, a := range m.attributes() {
			if !slices.Contains(out[at].Attribute, a) {
				out[at].Attribute = append(out[at].Attribute, a)
			}
		}
	}
	return out
}

func (s *metricsReader) addMBean(sums *metricSums, bean string, attributes map[string]json.RawMessage) error {
	properties, err := parseObjectName(bean)
	if err != nil {
		return err
	}
	labels := func(name string) (string, bool) {
		v, ok := properties[strings.ToLower(name)]
		return v, ok
	}
	typ, name := strings.ToLower(properties["type"]), strings.ToLower(properties["name"])
	for a, raw := range attributes {
		x := metricSeries{attribute: strings.ToLower(a), labels: labels}
		if x.metrics = s.index.byKey[metricKey{typ, name, x.attribute}]; x.metrics == nil {
			continue
		}
		var v *float64
		if json.Unmarshal(raw, &v) != nil || v == nil {
			continue // "NaN", or null
		}
		x.value = *v
		sums.add(x)
	}
	return nil
}

// parseObjectName returns the key properties of an MBean, keys in lower case. A
// value in quotes has escapes (javax.management.ObjectName).
func parseObjectName(s string) (map[string]string, error) {
	_, rest, ok := strings.Cut(s, ":")
	out := make(map[string]string)
	for ok && rest != "" {
		var key, value string
		if key, rest, ok = strings.Cut(rest, "="); !ok {
			break
		}
		if strings.HasPrefix(rest, `"`) {
			value, rest, ok = unquoteProperty(rest)
		} else {
			value, rest, _ = strings.Cut(rest, ",")
		}
		out[strings.ToLower(key)] = value
	}
	if !ok {
		return nil, fmt.Errorf("%.200q is not the name of an MBean", s)
	}
	return out, nil
}

// unquoteProperty reads a value in quotes and the comma behind it.
func unquoteProperty(s string) (value, rest string, ok bool) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			rest = s[i+1:]
			if rest != "" && rest[0] != ',' {
				return "", "", false
			}
			return b.String(), strings.TrimPrefix(rest, ","), true
		case '\\':
			if i++; i == len(s) {
				return "", "", false
			}
			if s[i] == 'n' {
				b.WriteByte('\n')
			} else {
				b.WriteByte(s[i])
			}
		default:
			b.WriteByte(s[i])
		}
	}
	return "", "", false
}
