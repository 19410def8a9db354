"""Made-up weather: the same city always has the same, so that a demonstration can be repeated. No network."""

import zlib

CONDITIONS = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")


def weather_in(city: str) -> dict[str, str | int]:
    number = zlib.crc32(city.strip().lower().encode())
    return {
        "city": city,
        "conditions": CONDITIONS[number % len(CONDITIONS)],
        "temperature": number // 7 % 35 - 5,
        "humidity": number // 11 % 60 + 30,
        "wind": number // 13 % 40,
    }
