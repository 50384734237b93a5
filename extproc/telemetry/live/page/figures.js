// How figures are written. null: not known.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const TENTHS = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const HUNDREDTHS = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

export const NONE = "–";

export function count(value) {
  return value === null || value === undefined ? NONE : WHOLE.format(value);
}

// Slots and rates: digits after the point only where they say something.
export function amount(value) {
  if (value === null || value === undefined) return NONE;
  return Math.abs(value) < 100 ? TENTHS.format(value) : WHOLE.format(value);
}

export function index(value) {
  return value === null || value === undefined ? NONE : HUNDREDTHS.format(value);
}

export function percent(ratio) {
  return ratio === null || ratio === undefined ? NONE : `${WHOLE.format(100 * ratio)} %`;
}

export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 9.95) return Number.isInteger(value) ? `${value} s` : `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  if (whole < 120) return `${whole} s`;
  if (whole < 7200) return parts(whole, 60, "min", 1, "s");
  if (whole < 172800) return parts(whole, 3600, "h", 60, "min");
  return parts(whole, 86400, "d", 3600, "h");
}

function parts(whole, large, largeName, small, smallName) {
  const rest = Math.floor((whole % large) / small);
  return `${Math.floor(whole / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

export function milliseconds(value) {
  return value === null || value === undefined ? NONE : `${amount(1000 * value)} ms`;
}

// `at`: seconds since 1970.
export function timeOfDay(at) {
  return new Date(1000 * at).toLocaleTimeString("en", { hour12: false });
}

export function plural(number, one, many) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
