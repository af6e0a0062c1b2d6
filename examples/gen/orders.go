package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	lineCount    = 10_000
	malformedGap = 500 // one line in so many is not JSON
	bigGap       = 600 // one order in so many is some tens of KiB
)

// event is one line of the file.
type event struct {
	OrderID  string            `json:"order_id"`
	LedgerID int64             `json:"ledger_id"` // above 2^53, which a float64 would round
	Status   string            `json:"status"`
	At       time.Time         `json:"at"`
	Customer customer          `json:"customer"`
	Items    []item            `json:"items"`
	Currency string            `json:"currency"`
	Total    int64             `json:"total_minor"`
	Coupon   *string           `json:"coupon"`
	Tags     []string          `json:"tags"`
	Gift     *gift             `json:"gift"`
	Meta     map[string]any    `json:"meta,omitempty"`
	Headers  map[string]string `json:"headers,omitempty"`
}

type customer struct {
	ID     string  `json:"id"`
	City   string  `json:"city"`
	Locale string  `json:"locale"`
	Score  float64 `json:"score"`
}

type item struct {
	SKU      string  `json:"sku"`
	Name     string  `json:"name"`
	Quantity int     `json:"quantity"`
	Price    int64   `json:"price_minor"`
	Weight   *string `json:"weight_kg"`
}

type gift struct {
	Wrap    string `json:"wrap"`
	Message string `json:"message"`
}

// source is splitmix64. math/rand may draw other numbers in another version of
// Go; this cannot.
type source struct{ state uint64 }

func (s *source) next() uint64 {
	s.state += 0x9e3779b97f4a7c15
	z := s.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below returns a number in [0, n).
func (s *source) below(n int) int { return int(s.next() >> 1 % uint64(n)) }

func pick[T any](s *source, from []T) T { return from[s.below(len(from))] }

// writeOrders writes the whole file.
func writeOrders(w io.Writer) error {
	s := &source{state: 1289}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for n := range lineCount {
		at = at.Add(time.Duration(1+s.below(90_000)) * time.Millisecond)
		line, err := json.Marshal(newEvent(n, at))
		if err != nil {
			return fmt.Errorf("order %d: %w", n, err)
		}
		if n%malformedGap == malformedGap/2 {
			line = malform(n/malformedGap, line)
		}
		if _, err := fmt.Fprintf(w, "%s\n", line); err != nil {
			return err
		}
	}
	return nil
}

// eventsPerOrder is how often each order is seen on its way.
const eventsPerOrder = 3

// newEvent returns event n of the file. The events of one order differ in
// their status and time only.
func newEvent(n int, at time.Time) event {
	order := n / eventsPerOrder
	s := &source{state: uint64(order)}
	cities := []string{
		"Utrecht", "K\u00f6ln", "S\u00e3o Paulo", "\u041a\u0438\u0457\u0432", "\u5927\u962a\u5e02", "\u0627\u0644\u0642\u0627\u0647\u0631\u0629", "Reykjav\u00edk", "\u0e01\u0e23\u0e38\u0e07\u0e40\u0e17\u0e1e\u0e2f", "M\u00fcnchen", "Lyon",
	}
	locales := []string{"nl-NL", "de-DE", "pt-BR", "uk-UA", "ja-JP", "ar-EG", "is-IS", "th-TH", "de-DE", "fr-FR"}
	where := s.below(len(cities))
	ev := event{
		OrderID:  fmt.Sprintf("ord-%06d", order+1),
		LedgerID: 1<<53 + 1 + int64(n),
		Status:   status(s, n%eventsPerOrder),
		At:       at,
		Customer: customer{
			ID:     fmt.Sprintf("c-%05d", s.below(2500)),
			City:   cities[where],
			Locale: locales[where],
			Score:  float64(s.below(1000)) / 8,
		},
		Currency: pick(s, []string{"EUR", "EUR", "EUR", "USD", "JPY", "BRL"}),
		Tags:     []string{},
	}
	lines := 1 + s.below(2)
	if order%bigGap == bigGap/3 {
		lines = 200 + s.below(200)
	}
	for range lines {
		it := newItem(s)
		ev.Items = append(ev.Items, it)
		ev.Total += it.Price * int64(it.Quantity)
	}
	addExtras(s, &ev)
	return ev
}

// status returns what happened at one step of an order. It draws the whole way
// each time, so that the steps of one order agree.
func status(s *source, step int) string {
	ways := [][eventsPerOrder]string{
		{"placed", "paid", "packed"}, {"placed", "paid", "packed"}, {"placed", "paid", "shipped"}, {"placed", "paid", "refunded"}, {"placed", "changed", "cancelled"},
	}
	return pick(s, ways)[step]
}

func newItem(s *source) item {
	it := item{
		SKU: fmt.Sprintf("%s-%04d", pick(s, []string{"BK", "EL", "GR", "TO"}), s.below(10_000)),
		Name: pick(s, []string{
			"notebook, A5", "lamp \"Linea\"", "tea \u8336 100 g", "caf\u00e9 moulu", "jigsaw (1\u202f000 pieces)", "\u00e9tag\u00e8re", "cable\tUSB-C", "sticker \U0001f600", "nail 3\u00bd\"", "back\\slash print",
		}),
		Quantity: 1 + s.below(5),
		Price:    int64(50 + s.below(20_000)),
	}
	if s.below(3) == 0 {
		kg := fmt.Sprintf("%d.%03d", s.below(20), s.below(1000))
		it.Weight = &kg
	}
	return it
}

// addExtras fills what most orders lack.
func addExtras(s *source, ev *event) {
	if s.below(6) == 0 {
		c := pick(s, []string{"WELCOME10", "", "SPRING \u2740", "FREE-SHIP"})
		ev.Coupon = &c
	}
	for range s.below(3) {
		ev.Tags = append(ev.Tags, pick(s, []string{"b2b", "express", "fragile", "first-order", "\u203c\ufe0f check"}))
	}
	if s.below(12) == 0 {
		ev.Gift = &gift{
			Wrap: pick(s, []string{"plain", "stars", "none"}),
			Message: pick(s, []string{
				"Happy birthday! \U0001f382\U0001f389", "line one\nline two", "\u0645\u0628\u0631\u0648\u0643", "e\u0301 is not \u00e9 until normalised", strings.Repeat("thank you ", 40),
			}),
		}
	}
	if s.below(10) == 0 {
		ev.Meta = map[string]any{
			"source": map[string]any{"channel": pick(s, []string{"web", "app", "phone"}), "version": []int{s.below(9), s.below(30)}},
			"risk":   []any{s.below(100), nil, s.below(2) == 0, map[string]any{}},
			"empty":  []any{},
		}
	}
	if s.below(15) == 0 {
		ev.Headers = map[string]string{"": "empty key", "trace-id": fmt.Sprintf("%016x", s.next())}
	}
}

// malform returns a line that is not JSON, each in another way.
func malform(i int, line []byte) []byte {
	switch i % 10 {
	case 0: // cut off, as by a full disk
		return line[:len(line)/2]
	case 1:
		return []byte("{'order_id': 'ord-000000', 'status': 'paid'}")
	case 2: // not UTF-8
		return []byte("{\"order_id\": \"caf\xe9\", \"status\": \"\xff\xfe\"")
	case 3:
		return []byte(`{"order_id":"ord-000000","status":"paid",}`)
	case 4:
		return []byte("ERROR 503 upstream connect error or disconnect/reset before headers")
	case 5: // two documents ran together
		return append(line[:len(line)-1:len(line)-1], `"{"status":"paid"}`...)
	case 6:
		return []byte("<order id=\"ord-000000\"><status>paid</status></order>")
	case 7:
		return []byte("order_id,status\tpaid")
	case 8: // a terminal sequence
		return []byte("\x1b[31mpaid\x1b[0m")
	default:
		return []byte(`{"order_id":NaN}`)
	}
}
